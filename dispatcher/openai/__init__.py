"""The OpenAI API over HTTP, in a separate process that the daemon starts when a model requires it.

    supervisor.py   in the daemon: the listening socket, the process and its restarts, the state sent to it
    state.py        the messages between them: settings and models, sent again after every change
    __main__.py     the process ▶ server.py (routes) ▶ completions.py, embeddings.py (one request) ▶ upstream.py
        (tritonserver)
    keys.py         API keys and quotas
    browsers.py     which pages in browsers may send requests
    body_reader.py  limits the memory of request bodies; for connections and the log see http_server
    meters.py       metrics, named as in OpenTelemetry's conventions

It talks to tritonserver over HTTP like any client, so its failures affect neither the dispatcher nor the models.
"""

from __future__ import annotations
