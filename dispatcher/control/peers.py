"""Access control for the control socket: identifies the sender of each frame, and admits or refuses the sender.

libzmq gets the peer of a unix socket from the kernel (SO_PEERCRED, unix(7)) and appends it to the message property
"Peer-Address": `localhost:<uid>:<gid>:<pid>`. It cannot be forged, since the kernel provides it. The pid of a process
in an invisible pid namespace is 0.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import zmq

from pytriton._host.client_keys import KeyStore
from pytriton._protocol.errors import ErrorKind

_log = structlog.get_logger(__name__)

_CREDENTIALS = re.compile(r".*:(\d+):(\d+):(\d+)")
#: Interval between reports about the same sender, and the number of senders that are tracked.
_REPORT_INTERVAL_S, _MAX_REPORTED = 60.0, 256
_MAX_COMMAND_LINE = 4096


@dataclass(frozen=True)
class Sender:
    """The sender of a message, with a description. `uid` and `pid` are None if unknown."""

    name: str
    uid: int | None = None
    pid: int | None = None


class MessageRefused(Exception):
    """A message was refused before it was parsed. The text gives the reason, for the sender and the log."""

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.INVALID) -> None:
        super().__init__(text)
        self.kind = kind


def message_property(frame: zmq.Frame, name: str) -> str | None:
    """Return a property that libzmq attached to a received frame, or None."""
    try:
        value = frame.get(name)
    except zmq.ZMQError:
        return None
    return str(value)


def message_sender(frame: zmq.Frame) -> str:
    """Describe the sender of a frame, even if the sender is not allowed to control the daemon."""
    key = message_property(frame, "User-Id")
    if key:
        return f"client {key}"
    local = local_sender(frame)
    if local.uid is not None:
        return local.name
    return message_property(frame, "Peer-Address") or local.name


def local_sender(frame: zmq.Frame) -> Sender:
    """Return the sender of a frame that came over a unix socket."""
    match = _CREDENTIALS.fullmatch(message_property(frame, "Peer-Address") or "")
    if match is None:
        return Sender("unknown sender")
    uid, _, pid = (int(number) for number in match.groups())
    return Sender(f"user {uid}, process {pid or 'unknown'}", uid, pid or None)


def describe_sender(sender: Sender) -> str:
    """Describe a sender by its user name and command: "user ann, process 4242 (python train.py)".

    May block, since the lookup of the user may require a server. Unknown users and exited processes appear as numbers.
    """
    if sender.uid is None:
        return sender.name
    words = _command_line(sender.pid) if sender.pid is not None else []
    command = f" ({_command(words)})" if words else ""
    return f"user {user_name(sender.uid)}, process {sender.pid or 'unknown'}{command}"


def user_name(uid: int) -> str:
    """Return a user's name, or the user ID if there is no name. May block, since the lookup may query a server."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(_MAX_COMMAND_LINE)
    except OSError:
        return []
    return [os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0")] if line else []


def _command(words: Sequence[str]) -> str:
    """Return the program that a process runs; for an interpreter or our command line, also the script or subcommand.

    Further arguments are omitted: they may be secrets, and the audit events are posted to webhooks.
    """
    program, rest = os.path.basename(words[0]), list(words[1:])
    if re.fullmatch(r"python[\d.]*", program):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            rest.pop(0)
        if not rest or rest[0] == "-c":
            return " ".join([program, *rest[:1]])
        if rest[0] != "-m" and os.path.basename(rest[0]) != "pytriton-daemon":
            return f"{program} {rest[0]}"
        program = os.path.basename(rest[0]) if rest[0] != "-m" else " ".join([program, *rest[:2]])
        rest = rest[2:] if rest[0] == "-m" else rest[1:]
    ours = program.endswith(("pytriton-daemon", " pytriton._cli"))
    return f"{program} {rest[0]}" if ours and rest and rest[0].isidentifier() else program


class LocalGuard:
    """Admits the daemon's own user and root.

    If a group is configured, everyone who can connect to the socket is admitted.
    """

    def __init__(self, group: str | None) -> None:
        self._everybody = group is not None
        self._allowed = {0, os.geteuid()}
        self._warned_unknown_sender = False

    def admit(self, frame: zmq.Frame) -> Sender:
        """Return the sender of a frame.

        Raises:
            MessageRefused: the sender is not allowed to control the daemon.
        """
        sender = local_sender(frame)
        if sender.uid is None:
            if not self._warned_unknown_sender:
                self._warned_unknown_sender = True
                _log.warning(
                    "ZeroMQ does not report peer credentials: only file modes restrict access"
                )
        elif not self._everybody and sender.uid not in self._allowed:
            raise MessageRefused(
                f"user {sender.uid} may not control this daemon; only user {os.geteuid()} and root may. To "
                "allow the members of a group as well, set control_group"
            )
        return sender


class KeyAuthenticator:
    """Callback that tells ZeroMQ's authenticator which public keys may connect."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether the client with this public key (Z85) may connect.

        ZeroMQ has already verified that the client has the matching secret key.
        """
        name = self._keys.name_of(key)
        if name is None:
            _log.warning(
                "connection with an unknown key refused", key=key.decode("ascii", "replace")
            )
        return name is not None


class KeyGuard:
    """Admits each connected client until its key is removed."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def admit(self, frame: zmq.Frame) -> Sender:
        """Return the sender of a frame. Raises MessageRefused."""
        name = self._keys.name_of(message_property(frame, "User-Id") or "")
        if name is None:
            raise MessageRefused("this client's key was removed")
        return Sender(f"client {name}")


class RefusalLog:
    """Logs refused messages, at most once a minute for each sender."""

    def __init__(self) -> None:
        self._dropped: dict[str, tuple[float, int]] = {}

    def report(self, event: str, sender: str, why: str) -> None:
        """Log that a message from `sender` was refused, unless a refusal was logged recently."""
        now = time.monotonic()
        reported_at, silent = self._dropped.get(sender, (-_REPORT_INTERVAL_S, 0))
        if now - reported_at < _REPORT_INTERVAL_S:
            self._dropped[sender] = reported_at, silent + 1
            return
        if len(self._dropped) >= _MAX_REPORTED:
            self._dropped.clear()
        self._dropped[sender] = now, 0
        _log.warning(event, sender=sender, reason=why[:200], not_reported_before=silent)
