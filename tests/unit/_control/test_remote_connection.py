"""A daemon behind a TCP port: unusable keys, and the state of a broken or refused connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytriton._control.connection import ControlRequest, RemoteConnection
from pytriton._protocol import control, messages
from pytriton._protocol.control import ControlTimeout, CurveKeys
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

ENDPOINT = "tcp://h:1"


class Channel:
    """A fake channel: whether the handshake succeeded, and what went wrong."""

    agreed = True
    trouble: str | None = None

    def __init__(self, *given: Any) -> None:
        self.looks: list[bool] = []

    def close(self) -> None: ...

    def watch(self) -> None: ...

    def ask(self, message: Any, payloads: Any, *, is_alive: Any, **how: Any) -> Any:
        self.looks.append(is_alive())
        if not self.looks[-1]:
            raise ControlTimeout("it is gone")
        return messages.Done()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> RemoteConnection:
    monkeypatch.setattr(control, "ControlClient", Channel)
    monkeypatch.setattr(CurveKeys, "read", lambda path: CurveKeys(b"s", b"p", b"x"))
    return RemoteConnection(ENDPOINT, "key", timeout_s=0.0)


def test_tcp_requires_a_key(tmp_path: Path) -> None:
    with pytest.raises(
        PyTritonDaemonError, match=r"accepts only clients with a key.*keys add NAME"
    ):
        RemoteConnection(ENDPOINT, None, 1.0)
    with pytest.raises(PyTritonDaemonError, match=r"The key file .*none cannot be used"):
        RemoteConnection(ENDPOINT, tmp_path / "none", 1.0)


def test_the_token_is_not_sent(connection: RemoteConnection) -> None:
    with pytest.raises(
        PyTritonDaemonError, match=r"is in its runtime directory.*pytriton-daemon access-token"
    ):
        connection.access_token()


@pytest.mark.parametrize(
    ("agreed", "trouble", "kind", "words"),
    [
        (True, None, None, ""),
        (True, "connection reset", DaemonNotRunningError, "did not answer: connection reset"),
        (
            False,
            "it does not know this key",
            PyTritonDaemonError,
            "refuses this client: it does not know",
        ),
        (False, None, DaemonNotRunningError, "No daemon answers at tcp://h:1 within 0 s"),
    ],
)
def test_connection_states_map_to_liveness(
    connection: RemoteConnection,
    monkeypatch: pytest.MonkeyPatch,
    agreed: bool,
    trouble: str | None,
    kind: type[Exception] | None,
    words: str,
) -> None:
    monkeypatch.setattr(Channel, "agreed", agreed)
    monkeypatch.setattr(Channel, "trouble", trouble)
    request = ControlRequest(messages.GetStatus())
    if kind is None:
        assert connection.ask(request) == messages.Done()
        return
    with pytest.raises(kind, match=words) as caught:
        connection.ask(request)
    assert type(caught.value) is kind
