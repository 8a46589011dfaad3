"""Common parts of our HTTP servers: protection against hostile or broken clients.

    connections.py   limits the number of connections and their idle time
    browsers.py      refuses browser requests on behalf of other sites' pages
    decompression.py     decompresses request bodies piece by piece
    error_log.py    counts clients' errors in the log without quoting them

Used by the OpenAI frontend and the management server. Depends on aiohttp, but on neither of them. May import: base.
"""

from __future__ import annotations
