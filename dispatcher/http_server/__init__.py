"""Protection against hostile or broken clients, shared by our two HTTP servers: the OpenAI API and the management
server.

    connections.py     limits the number of connections and their idle time; logs client errors without quoting requests
    decompression.py   decompresses request bodies piece by piece
    browsers.py        refuses cross-site requests from browsers

Depends on aiohttp, but on neither server. May import: runtime.
"""

from __future__ import annotations
