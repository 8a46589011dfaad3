"""Cross-site requests of browsers to the native frontend's HTTP ports."""

from __future__ import annotations

import pytest
from support.cross_site_requests import CASES, Sent
from support.frontend.process import OpenAIProcess
from support.frontend.raw_http import RawClient, json_of


def _status(client: RawClient, sent: Sent, port: int) -> int:
    is_post = sent.method == "POST"
    path, body = ("/v2/models/echo/infer", json_of()) if is_post else ("/v2/health/live", b"")
    lines = [f"{sent.method} {path} HTTP/1.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in sent.headers_for(port).items()]
    client.send("\r\n".join([*lines, "", ""]).encode() + body)
    return client.answer()[0]


@pytest.mark.parametrize("sent", CASES.values(), ids=CASES)
def test_cross_site_requests_to_a_loopback_address_are_refused(
    frontend: OpenAIProcess, sent: Sent
) -> None:
    client = RawClient(frontend)
    assert _status(client, sent, frontend.http[1]) == (403 if sent.refused else 200)
    assert _status(client, CASES["address"], frontend.http[1]) == 200  # the connection goes on
    client.close()


def test_the_daemons_own_requests_are_not_checked(frontend: OpenAIProcess) -> None:
    admin = RawClient(OpenAIProcess(frontend.process, frontend.admin))
    assert _status(admin, CASES["rebound"], frontend.admin[1]) == 200
    admin.close()
