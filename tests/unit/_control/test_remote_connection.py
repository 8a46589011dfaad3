"""A daemon behind a TCP port: what tests/integration/security/test_control_tcp.py cannot provoke."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._control.connection import ControlRequest, RemoteConnection
from pytriton._protocol import control, messages
from pytriton._protocol.control import ControlTimeout, CurveKeys
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

ENDPOINT = "tcp://h:1"


class Channel:
    """A channel whose connection broke after the handshake."""

    agreed, trouble = True, "connection reset"

    def __init__(self, *given: Any) -> None: ...

    def close(self) -> None: ...

    def watch(self) -> None: ...

    def ask(self, message: Any, payloads: Any, *, is_alive: Any, **how: Any) -> Any:
        assert not is_alive()
        raise ControlTimeout("it is gone")


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> RemoteConnection:
    monkeypatch.setattr(control, "ControlClient", Channel)
    monkeypatch.setattr(CurveKeys, "read", lambda path: CurveKeys(b"s", b"p", b"x"))
    return RemoteConnection(ENDPOINT, "key", timeout_s=0.0)


def test_the_token_is_not_sent(connection: RemoteConnection) -> None:
    with pytest.raises(
        PyTritonDaemonError,
        match=r"is in the daemon's runtime directory.*pytriton-daemon access-token",
    ):
        connection.access_token()


def test_a_connection_that_breaks_is_reported_with_the_reason(connection: RemoteConnection) -> None:
    with pytest.raises(DaemonNotRunningError, match="did not answer: connection reset"):
        connection.ask(ControlRequest(messages.GetStatus()))
