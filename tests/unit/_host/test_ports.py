"""Ports: free ones, used ones, and who uses them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import lasting_port

from pytriton._host import ports
from pytriton._host.ports import (
    PortError,
    assign_ports,
    check_port_free,
    listening_at,
    port_holder,
)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_used_port_is_refused_and_its_user_named(taken: int) -> None:
    with pytest.raises(PortError) as error:
        check_port_free("127.0.0.1", taken, "http_port")
    assert f"port {taken} (http_port) on 127.0.0.1 is in use by pid {os.getpid()} (" in str(
        error.value
    )


def test_a_wildcard_address_conflicts_with_every_other(taken: int) -> None:
    with pytest.raises(PortError, match=f"pid {os.getpid()}"):
        check_port_free("0.0.0.0", taken)
    assert port_holder("localhost", taken) is not None


def test_the_same_port_of_another_address_is_free(taken: int) -> None:
    check_port_free("127.0.0.2", taken)
    assert port_holder("127.0.0.2", taken) is None


def test_a_port_shared_by_so_reuseport_counts_as_used() -> None:
    """tritonserver's gRPC port has that option: two servers would share the connections."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(PortError, match="in use"):
            check_port_free("127.0.0.1", listener.getsockname()[1])


def test_port_zero_is_always_free() -> None:
    check_port_free("127.0.0.1", 0)


@pytest.fixture
def favourite(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the kernel always choose the same port, as long as it is free."""
    favourite = lasting_port()
    bind = socket.socket.bind

    def favour(self: socket.socket, address: tuple[str, int]) -> None:
        if address[1] == 0:
            with contextlib.suppress(OSError):
                bind(self, (address[0], favourite))
                return
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", favour)
    return favourite


def test_ports_chosen_together_differ(favourite: int) -> None:
    free = assign_ports({name: ("127.0.0.1", 0) for name in "abc"})
    assert len(set(free.values())) == 3
    mixed = assign_ports({"a": ("127.0.0.1", 0), "b": ("127.0.0.1", favourite)})
    assert mixed["b"] == favourite != mixed["a"]


def test_ports_are_chosen_or_refused_with_their_setting(taken: int) -> None:
    with pytest.raises(PortError, match=rf"port {taken} \(grpc_port\).* in use by pid"):
        assign_ports({"http_port": ("127.0.0.1", 0), "grpc_port": ("127.0.0.1", taken)})
    free = lasting_port()
    same = {"http_port": ("127.0.0.1", free), "grpc_port": ("0.0.0.0", free)}
    with pytest.raises(PortError, match=f"http_port and grpc_port are both {free}"):
        assign_ports(same)
    others = {"http_port": ("127.0.0.1", free), "grpc_port": ("127.0.0.2", free)}
    assert assign_ports(others) == {"http_port": free, "grpc_port": free}


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", 65536, "not between 0 and 65535"),
        ("192.0.2.1", 0, "not an address of this machine"),  # RFC 5737: reserved for documentation
        ("not a host", 0, "cannot resolve the address"),
    ],
)
def test_an_unusable_address_is_reported(host: str, port: int, text: str) -> None:
    with pytest.raises(PortError, match=text):
        check_port_free(host, port)


def test_a_unix_socket_is_private_however_long_its_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    path = folder / "http.sock"
    for _ in range(2):  # the first one leaves its file, as a killed daemon does
        with listening_at(path, "http_unix_socket", backlog=5):
            assert path.stat().st_mode & 0o777 == 0o600


def test_a_unix_socket_in_use_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with listening_at(path, "http_unix_socket", backlog=5) as listener:
        with pytest.raises(
            PortError, match=r"http.sock \(http_unix_socket\): another process is listening"
        ):
            listening_at(path, "http_unix_socket", backlog=5)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            listener.accept()[0].close()


@pytest.mark.parametrize("name", ["nowhere/http.sock", "file"])
def test_an_impossible_unix_socket_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PortError, match="cannot listen on the unix socket"):
        listening_at(tmp_path / name, backlog=5)
    assert (tmp_path / "file").read_text() == "mine"


@contextlib.contextmanager
def _daemons_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a runtime directory, as if this process were a daemon."""
    with open(folder / "daemon.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def test_a_port_of_another_daemon_is_reported_with_its_directory(
    taken: int, tmp_path: Path
) -> None:
    with _daemons_lock(tmp_path), pytest.raises(PortError) as error:
        check_port_free("127.0.0.1", taken, "http_port")
    by = f"another pytriton-daemon in {tmp_path} (pid {os.getpid()})"
    assert f"port {taken} (http_port) on 127.0.0.1 is in use by {by}; stop that" in str(error.value)
    with pytest.raises(PortError, match=f"in use by pid {os.getpid()} "):  # it has ended
        check_port_free("127.0.0.1", taken, "http_port")


@pytest.mark.parametrize(
    ("owner", "by"),
    [
        (os.getppid(), f"a Triton object of this process (pid {os.getppid()})"),
        (1 << 30, f"a Triton object of process {1 << 30}"),
    ],
)
def test_a_port_of_a_triton_object_is_reported(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, by: str
) -> None:
    monkeypatch.setattr(ports, "_owner", lambda pid: owner)
    with _daemons_lock(tmp_path), pytest.raises(PortError, match=re.escape(f"in use by {by}; ")):
        check_port_free("127.0.0.1", taken)
