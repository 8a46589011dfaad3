"""Sockets passed by a service manager: which ones are used, and for what."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytriton._host.ports import PortError, held_port, listening
from pytriton._host.service_manager import socket_activation
from pytriton._host.service_manager.socket_activation import SocketActivationError
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.run import take_activated_sockets


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket, the only one passed by the service manager; the process has released it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(socket_activation, "_FIRST", os.dup(listener.fileno()))
        yield listener
        socket_activation.forget()


def variables(count: object = 1, pid: object = None) -> dict[str, str]:
    pid = os.getpid() if pid is None else pid
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": "a", "OTHER": "1"}


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_sockets_are_matched_by_port(given: socket.socket) -> None:
    environ = variables()
    socket_activation.take(environ)
    assert environ == {"OTHER": "1"}  # children do not inherit them
    assert socket_activation.variables().keys() == set(socket_activation.VARIABLES)
    (number,) = socket_activation.descriptors()
    assert not os.get_inheritable(number)
    port = port_of(given)
    for host in ("127.0.0.1", "0.0.0.0"):
        with listening(host, port, backlog=1) as one, socket.create_connection(("127.0.0.1", port)):
            one.accept()[0].close()
    with listening("127.0.0.1", 0, backlog=1) as other:
        assert port_of(other) != port
    with pytest.raises(PortError, match=rf"listens on port {port} \(http_port\).*socket unit"):
        held_port("127.0.0.1", port, "http_port").__enter__()


def test_the_socket_with_the_exact_address_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        other = stack.enter_context(socket.create_server(("127.0.0.2", port_of(one))))
        monkeypatch.setattr(socket_activation, "_held", [one.dup(), other.dup()])
        stack.callback(socket_activation.forget)
        with listening("127.0.0.2", port_of(one), backlog=1) as found:
            assert found.getsockname() == other.getsockname()


@pytest.mark.parametrize("pid", [1, "", "x"])
def test_sockets_for_another_process_are_left_alone(given: socket.socket, pid: object) -> None:
    environ = variables(pid=pid)
    socket_activation.take(environ)
    assert environ == {"OTHER": "1"}
    assert socket_activation.descriptors() == []
    with pytest.raises(PortError, match="is in use"):
        listening("127.0.0.1", port_of(given), backlog=1)


@pytest.mark.parametrize("count", ["", "-1", "x", "1e3", "1000", "²", "9" * 5000])
def test_an_invalid_number_of_descriptors_is_refused(count: str) -> None:
    with pytest.raises(SocketActivationError, match="LISTEN_FDS"):
        socket_activation.take(variables(count))


def test_an_unusable_socket_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        open(tmp_path / "file", "wb") as file,
        socket.socket() as silent,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        for number in (one.fileno() for one in (file, silent, datagrams, unix)):
            monkeypatch.setattr(socket_activation, "_FIRST", number)
            with pytest.raises(SocketActivationError, match=f"descriptor {number} "):
                socket_activation.take(variables())
            os.fstat(number)  # the passing process still has it
            assert socket_activation.descriptors() == []


def test_every_socket_must_match_a_setting(given: socket.socket) -> None:
    port = port_of(given)
    ports: dict[str, Any] = {"http_port": port, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    named = [
        ports,
        {**ports, "http_port": 0, "openai_port": port},
        {**ports, "http_port": 0, "management_address": f"127.0.0.1:{port}"},
    ]
    number = os.dup(given.fileno())
    for settings in named:
        os.dup2(given.fileno(), socket_activation._FIRST)
        take_activated_sockets(DaemonConfig(**settings), variables())
        assert socket_activation.addresses() == [("127.0.0.1", port)]
        socket_activation.forget()
    os.dup2(number, socket_activation._FIRST)
    os.close(number)
    with pytest.raises(
        SocketActivationError, match=rf"port {port} of 127\.0\.0\.1 .* \(http 8000, grpc"
    ):
        take_activated_sockets(DaemonConfig(), variables())
    socket_activation.forget()
    os.dup2(given.fileno(), socket_activation._FIRST)
    with pytest.raises(SocketActivationError):
        take_activated_sockets(DaemonConfig(**{**ports, "allow_http": False}), variables())


@pytest.mark.parametrize(
    ("setting", "address", "is_same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("0.0.0.0", "::", True),
        ("::", "0.0.0.0", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("127.0.0.1", "0.0.0.0", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("no host's name", "127.0.0.1", False),
    ],
)
def test_the_address_is_that_of_the_settings(setting: str, address: str, is_same: bool) -> None:
    assert socket_activation.is_same_address(address, setting) is is_same


def test_an_address_other_than_the_settings_is_refused(given: socket.socket) -> None:
    """Nothing would listen at the configured address, and the other one may be open to everybody."""
    port = port_of(given)
    settings: dict[str, Any] = {"http_port": port, "grpc_port": 0, "metrics_port": 0}
    number = os.dup(given.fileno())
    os.dup2(given.fileno(), socket_activation._FIRST)
    with pytest.raises(
        SocketActivationError,
        match=rf"listens on the daemon's behalf on 127\.0\.0\.1 \(port {port}\), but the setting http_address says 0\.0\.0\.0",
    ):
        take_activated_sockets(DaemonConfig(**settings, http_address="0.0.0.0"), variables())
    socket_activation.forget()
    os.dup2(number, socket_activation._FIRST)
    os.close(number)
    other = {**settings, "http_port": 0, "openai_port": 0, "management_address": f"0.0.0.0:{port}"}
    with pytest.raises(
        SocketActivationError, match=r"the setting management_address says 0\.0\.0\.0"
    ):
        take_activated_sockets(DaemonConfig(**other), variables())


def test_the_next_version_inherits_the_sockets(given: socket.socket) -> None:
    """The protocol requires the same descriptor numbers; `upgrade` and `start_fresh` rely on that."""
    code = (
        "import os, sys; from pytriton._host.service_manager import socket_activation as held\n"
        "held._FIRST = int(sys.argv[1]); os.environ['LISTEN_PID'] = str(os.getpid()); held.take(os.environ)\n"
        "again = sys.argv[2:]; print(held.addresses()[0][1], 'LISTEN_FDS' in os.environ, flush=True)\n"
        "for number in held.descriptors(): os.set_inheritable(number, True)\n"
        "again and os.execve(sys.executable, [sys.executable, *again], {**os.environ, **held.variables()})\n"
    )
    number = str(socket_activation._FIRST)
    done = subprocess.run(
        [sys.executable, "-c", code, number, "-c", code, number],
        env={**os.environ, "LISTEN_FDS": "1"},
        pass_fds=[socket_activation._FIRST],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{port_of(given)} False\n" * 2
