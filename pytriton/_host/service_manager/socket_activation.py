"""Socket activation: sockets on which a service manager listens for the daemon (systemd's sd_listen_fds(3)).

The sockets outlive the daemon: while it is down, connections wait instead of being refused. Variables contain the number
of sockets, whose descriptors start at 3, and the pid that they are for. The port of a socket, which is in the settings,
says what it is for.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, MutableMapping

#: Variables that a service manager sets for this process only.
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_FIRST = 3
#: An IPv6 socket also accepts IPv4 connections.
_EVERY_INTERFACE = {"0.0.0.0", "::"}

#: The sockets, with their original descriptors, and the variables; an upgrade passes both to the next version.
_held: list[socket.socket] = []
_variables: dict[str, str] = {}


class SocketActivationError(Exception):
    """The service manager has passed an unusable descriptor; the text says which, and what to do."""


def take(environ: MutableMapping[str, str]) -> None:
    """Take over the passed sockets, and remove the variables from the environment, so that no child inherits them.

    Raises:
        SocketActivationError: a descriptor is not a listening TCP socket.
    """
    found = numbers(environ)
    taken = {name: environ.pop(name) for name in VARIABLES if name in environ}
    forget()
    if found:
        _variables.update(taken)
        _held.extend(map(_taken, found))


def numbers(environ: Mapping[str, str]) -> range:
    """Return the descriptors that the variables announce; an empty range if the variables are meant for another process.

    Raises:
        SocketActivationError: the number of descriptors is invalid.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return range(0)
    count = environ.get("LISTEN_FDS", "")
    if not re.fullmatch("[0-9]{1,3}", count):
        raise SocketActivationError(f"LISTEN_FDS is {count[:20]!r}, but must be a number up to 999")
    return range(_FIRST, _FIRST + int(count))


def _taken(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        taken = socket.socket(fileno=number)
    except OSError as error:
        raise SocketActivationError(
            f"descriptor {number} from the service manager is not a socket: {error.strerror}"
        ) from error
    is_tcp = taken.family in (socket.AF_INET, socket.AF_INET6) and taken.type == socket.SOCK_STREAM
    if not is_tcp or not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        taken.detach()
        raise SocketActivationError(
            f"descriptor {number} from the service manager is not a listening TCP socket: the daemon's socket unit may "
            "only have ListenStream=ADDRESS:PORT lines, without Accept=yes"
        )
    return taken


def addresses() -> list[tuple[str, int]]:
    """Return the addresses and ports on which the service manager listens."""
    return [one.getsockname()[:2] for one in _held]


def is_same_address(address: str, setting: str) -> bool:
    """Return True if a setting, which may contain a host name, specifies the address of a socket."""
    if {address, setting} <= _EVERY_INTERFACE:
        return True
    try:
        found = socket.getaddrinfo(setting, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return address in {one[4][0] for one in found}


def at_port(port: int) -> Iterator[tuple[str, socket.socket]]:
    """Yield (address, socket) for each socket on a port."""
    for one in _held:
        address, number = one.getsockname()[:2]
        if number == port:
            yield address, one


def variables() -> dict[str, str]:
    """Return the variables that an upgrade passes to the next version of the daemon."""
    return dict(_variables)


def descriptors() -> list[int]:
    """Return the descriptors that an upgrade passes to the next version of the daemon."""
    return [one.fileno() for one in _held]


def forget() -> None:
    """Close all sockets, and forget the variables."""
    for one in _held:
        one.close()
    _held.clear()
    _variables.clear()
