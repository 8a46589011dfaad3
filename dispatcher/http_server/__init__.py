"""The common part of our HTTP servers: the limits that hostile clients meet.

    connections.py   how many connections there are, and how long one may idle
    browsers.py      requests of browsers for other sites' pages
    decompression.py     compressed bodies, piece by piece
    error_log.py    what the log says of clients: counted, never quoted

The OpenAI front and the operations server use it. It knows of aiohttp, and of neither of them. May import: base.
"""

from __future__ import annotations
