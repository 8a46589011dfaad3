"""An HTTP client for one of the two frontends."""

from __future__ import annotations

import http.client

from support.frontend.decisions import Reply
from support.frontend.frontend_pair import Frontend
from support.frontend.requests import Ask


def answer(frontend: Frontend, ask: Ask) -> Reply:
    """Send a request to one of the two frontends."""
    connection = http.client.HTTPConnection(frontend.http, timeout=60)
    try:
        connection.request(ask.verb, ask.path, ask.body, dict(ask.headers))
        response = connection.getresponse()
        body = response.read()
        return Reply(
            response.status, {name.lower(): value for name, value in response.getheaders()}, body
        )
    finally:
        connection.close()
