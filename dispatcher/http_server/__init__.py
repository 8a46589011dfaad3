"""Protection against hostile or broken clients, for our two HTTP servers: the OpenAI API and the management server.

    connections.py     limits the number of connections and their idle time; logs clients' errors without quoting them
    decompression.py   decompresses request bodies piece by piece
    browsers.py        refuses browser requests on behalf of other sites' pages

Depends on aiohttp, but on neither server. May import: runtime.
"""

from __future__ import annotations
