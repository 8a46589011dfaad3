"""The OpenAI API over HTTP, in a separate process that the daemon starts when a model requires it.

In the daemon:

    supervisor.py          the listening socket, the process and its restarts, the state sent to it
    state.py               the messages between them: settings and models, sent again after every change

In the process, in the order in which a request passes them:

    __main__.py            the process: receives the state, serves until the daemon exits or stops it
    client_connection.py   a client's connection: detects disconnects, reads bodies within limits, writes JSON
    server.py              routes, authorization, pages in browsers, and the answers that need no model
    keys.py                API keys and quotas
    completions.py         one request for text: relays the model's answer to the client
    embeddings.py          one request for embeddings: as many batches as needed
    upstream.py            the connections to tritonserver; event_stream.py reads streaming responses at little cost
    meters.py              metrics, named as in OpenTelemetry's conventions

It talks to tritonserver over HTTP like any client, so its failures affect neither the daemon nor the models.
"""

from __future__ import annotations
