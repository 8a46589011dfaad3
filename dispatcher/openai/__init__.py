"""The OpenAI API over HTTP, in a process of its own, which the daemon starts when a model asks for it.

    supervisor.py   in the daemon: the listening socket, the process, its restarts, what it is told
    state.py        what the daemon tells it: settings once, the models whenever they change
    __main__.py     the process ▶ server.py (routes) ▶ completions.py, vectors.py (one request) ▶ upstream.py (tritonserver)
    keys.py         who may ask, and how much
    browsers.py     which pages in browsers may
    reading.py      what hostile clients cannot use up: memory; connections and the log: http_server
    meters.py       what is measured, by the names of OpenTelemetry

It talks to tritonserver as any client does, over HTTP; a fault of it touches neither the dispatcher nor the models.
"""

from __future__ import annotations
