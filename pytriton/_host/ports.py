"""Finds and checks free TCP ports, identifies the process that uses a port, opens TCP and unix sockets, and connects to
the daemon's HTTP port.
"""

from __future__ import annotations

# getaddrinfo() imports it on first use. Up to Python 3.11, a garbage collection can make an import fail with a KeyError of
# the import lock. There is little garbage now, but much when tritonserver is started again later.
import encodings.idna  # noqa: F401
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytriton._host.ancestors import ancestors
from pytriton._host.service_manager import socket_activation
from pytriton._protocol.files.rundir import RuntimeDir

if TYPE_CHECKING:
    import http.client

#: Maximum number of characters shown of a holder's command line.
_COMMAND_SHOWN = 80
#: The name of the file in its runtime directory that a running daemon keeps open.
_LOCK_NAME = RuntimeDir(Path("/")).lock_file.name


class PortError(Exception):
    """The daemon cannot listen on a port or socket; the text says why, and what to do."""


def check_port_free(host: str, port: int, what: str = "") -> None:
    """Check that this user can listen on host:port now; raise PortError if not.

    Args:
        host: address or name to listen on, such as "127.0.0.1", "0.0.0.0" or "::".
        port: 1 to 65535, or 0, which is always free.
        what: the name of the port's setting, such as "http_port", for the error text.
    """
    with held_port(host, port, what):
        pass


def assign_ports(wanted: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Return the port for each setting. Replace 0 with a free port; check that the others are free.

    Args:
        wanted: name of a setting, such as "http_port" -> address and port.

    Raises:
        PortError: a port is in use or requested twice; the text names the holder.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:  # keeps the ports distinct
        named_first = sorted(wanted.items(), key=lambda one: one[1][1] == 0)
        for name, (host, port) in named_first:
            for other, taken in chosen.items():
                if port == taken and _overlap(host, wanted[other][0]):
                    raise PortError(
                        f"{other} and {name} are both {port}: set them to different ports, or to 0 for free ports"
                    )
            chosen[name] = held.enter_context(held_port(host, port, name))
    return chosen


@contextmanager
def held_port(host: str, port: int, what: str = "") -> Iterator[int]:
    """Listen on host:port, or on a free port if `port` is 0, until the end of the block; yield the port.

    For the arguments see `check_port_free`.

    Raises:
        PortError: this user cannot listen there now, or a service manager does.
    """
    if held_at(host, port) is not None:
        raise PortError(
            f"a service manager listens on port {port}{_setting(what)} for the daemon, but NVIDIA's executable cannot "
            'inherit its sockets: disable the socket unit, or set frontend = "native"'
        )
    with listening(host, port, what, backlog=1) as listener:
        yield int(listener.getsockname()[1])


def listening(host: str, port: int, what: str = "", *, backlog: int) -> socket.socket:
    """Return a socket that listens on host:port, or on a free port if `port` is 0. The arguments are those of `check_port_free`.

    If a service manager listens there for the daemon, return that socket, which remains open when the daemon exits.

    Raises:
        PortError: this user cannot listen there now.
    """
    setting = _setting(what)
    family, address = _resolve(host, port, setting)
    held = held_at(host, port)
    if held is not None:
        return held.dup()
    listener = socket.socket(family, socket.SOCK_STREAM)
    # As servers do: connections of a previous server in TIME_WAIT do not block the port. But no
    # SO_REUSEPORT, with which two tritonservers would share a gRPC port and split its calls.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # bind() alone allows two sockets with SO_REUSEADDR on one port
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise PortError(_explain(error, host, port, setting)) from error
    return listener


def held_at(host: str, port: int) -> socket.socket | None:
    """Return the socket on which a service manager listens on host:port for the daemon; None if there is none."""
    found = None
    for address, one in socket_activation.at_port(port):
        if address == host:
            return one
        if _overlap(host, address):  # the socket unit decides who can connect
            found = found or one
    return found


def _setting(what: str) -> str:
    return f" ({what})" if what else ""


def listening_at(path: Path, what: str = "", *, backlog: int) -> socket.socket:
    """Return a unix socket that listens at a path for this user only. Replace a socket left there by a killed daemon.

    Raises:
        PortError: this user cannot listen there, or another process does.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bind_at(listener, reachable_path(folder, path.name), path)
        finally:
            os.close(folder)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        setting = f" ({what})" if what else ""
        raise PortError(
            f"cannot listen on the unix socket {path}{setting}: {error.strerror}"
        ) from error
    return listener


def reachable_path(folder: int, name: str) -> str:
    """Return a short path for a socket in an open directory. The directory's own path may be too long for a socket."""
    return f"/proc/self/fd/{folder}/{name}"


def _bind_at(listener: socket.socket, short: str, path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(short)
        except ConnectionRefusedError:
            if path.is_socket():  # left by a daemon that was killed
                path.unlink()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        else:
            raise OSError(errno.EADDRINUSE, "another process is listening on it")
    listener.bind(short)
    path.chmod(0o600)  # nothing can connect before listen()


def port_holder(host: str, port: int) -> str | None:
    """Describe the process that listens on host:port, such as "pid 123 (python serve.py)"; None if there is none.

    Only root can identify processes of other users; otherwise the text says that it is another user's.
    """
    pids = _holders(host, port)
    known = [pid for pid in pids if pid is not None]
    if known:
        return _describe(known[0])
    return "a process of another user or container" if pids else None


def is_held_by(host: str, port: int, pid: int) -> bool:
    """Return True if a process or its descendants listen on host:port, and no other process does."""

    def belongs(holder: int | None) -> bool:
        return holder is not None and (pid == holder or pid in ancestors(holder))

    holders = _holders(host, port)
    return bool(holders) and all(map(belongs, holders))


def _holders(host: str, port: int) -> list[int | None]:
    """Return the pids of the processes that listen on host:port; None for each that cannot be identified."""
    import psutil  # takes 10 ms, and is rarely needed

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    return [
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and _overlap(host, connection.laddr.ip)
    ]


def _resolve(host: str, port: int, setting: str) -> tuple[int, tuple[object, ...]]:
    if not 0 <= port <= 65535:
        raise PortError(f"port {port}{setting} is not between 0 and 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise PortError(f"cannot resolve the address to listen on, {host!r}: {error}") from error
    return family, address


def _explain(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(host, port)
        by = f" by {holder}" if holder else ""
        return (
            f"port {port}{setting} on {host} is in use{by}; stop that process, choose another port, or "
            "use 0 for a free port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"this user cannot listen on port {port}{setting} on {host}; choose a port above 1023"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine, so nothing can listen on it"
    return f"cannot listen on port {port}{setting} of {host}: {error.strerror}"


def _overlap(host: str, other: str) -> bool:
    """Return True if two sockets cannot listen on these two addresses with the same port."""
    try:
        mine = ipaddress.ip_address(host)
        theirs = ipaddress.ip_address(other)
    except ValueError:  # a host name: not worth resolving for an error text
        return True
    if mine.is_unspecified or theirs.is_unspecified:
        return True
    mapped = getattr(theirs, "ipv4_mapped", None)
    return mine in (theirs, mapped)


def _describe(pid: int) -> str:
    import psutil

    daemon = _daemon_of(pid)
    if daemon is not None:
        return daemon
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:  # exited or became invisible
        return f"pid {pid}"
    if len(command) > _COMMAND_SHOWN:
        command = command[: _COMMAND_SHOWN - 1] + "…"
    return f"pid {pid} ({command})"


def _daemon_of(pid: int) -> str | None:
    """Describe the daemon that a process belongs to; None if it belongs to no daemon that can be identified."""
    for process in (pid, *ancestors(pid)):
        folder = _locked_runtime_dir(process)
        if folder is None:
            continue
        owner = _owner(process)
        if owner is None:
            return f"another pytriton-daemon in {folder} (pid {process})"
        if owner == os.getpid() or owner in ancestors(os.getpid()):
            return f"a Triton object of this process (pid {owner})"
        return f"a Triton object of process {owner}"
    return None


def _locked_runtime_dir(pid: int) -> Path | None:
    """Return the runtime directory of a daemon's process; None if the process is not a daemon."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has exited, or belongs to another user
        return None
    for descriptor in descriptors:
        with suppress(OSError):  # closed since
            file = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            if file.name == _LOCK_NAME and RuntimeDir(file.parent).running_pid() == pid:
                return file.parent
    return None


def _owner(pid: int) -> int | None:
    """Return the pid of a daemon's owner (`--owner`), such as the process of a `Triton` object; None if it has none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return int(words[words.index(b"--owner") + 1])
    except (OSError, ValueError, IndexError):
        return None


def connection_to(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to the daemon's own HTTP server, which is opened with the first request.

    Args:
        url: "http://…" or "https://…" with the address at which the server listens.
        timeout_s: time limit of each operation, in seconds.
    """
    import http.client
    import ssl

    parts = urlsplit(url)
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    # This is the daemon's server at its listening address, so there is no identity to verify.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
