"""Asks one of two fronts over HTTP."""

from __future__ import annotations

import http.client

from support.front.both import Front
from support.front.decisions import Reply
from support.front.requests import Ask


def answer(front: Front, ask: Ask) -> Reply:
    """Ask one of the two."""
    connection = http.client.HTTPConnection(front.http, timeout=60)
    try:
        connection.request(ask.verb, ask.path, ask.body, dict(ask.headers))
        response = connection.getresponse()
        body = response.read()
        return Reply(
            response.status, {name.lower(): value for name, value in response.getheaders()}, body
        )
    finally:
        connection.close()
