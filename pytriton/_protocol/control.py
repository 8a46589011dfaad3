"""The control socket: ZeroMQ DEALER (client, worker, proxy) to ROUTER (dispatcher) over a unix socket.

Frames, after the ROUTER's identity frame::

    [ request id: 8 bytes ][ message: see messages ][ payload ]*

A reply, and each Progress before it, carries the request id of what it answers. Messages that the
dispatcher sends of its own accord (LoadModel, WithdrawLane) carry `UNASKED`. Payloads are users'
bytes and stay closed here.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from pytriton._protocol import messages
from pytriton._protocol.closeable import Closeable
from pytriton._protocol.errors import ErrorKind, RemoteFailure

#: The request id of messages that answer nothing.
UNASKED = bytes(8)
#: A frame larger than this is refused by the dispatcher (ZeroMQ drops the peer).
MAX_FRAME_BYTES = 4 << 30
#: A frame up to this size reaches the dispatcher whatever its settings; it may still refuse it. The largest message
#: without payloads (a model's declaration, its environment and search path).
ALWAYS_TAKEN_BYTES = 8 << 20
#: What a Cancel gets to leave this process in.
_CANCEL_S = 1.0

#: Takes a message that the dispatcher sent of its own accord.
OnUnasked = Callable[[messages.AnyMessage], None]

#: In the metadata of a client's key file: the public key of the server that it is for.
SERVER_KEY = "server-public-key"
#: Of a connection over TCP: its pings, and the silence after which it counts as broken.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000


def identity_of(worker: str) -> bytes:
    """Return by which name a worker's connection is known."""
    return f"worker {worker}".encode()


class ControlTimeout(Exception):
    """The dispatcher did not answer in time."""


@dataclass(frozen=True)
class CurveKeys:
    """A client's keys for CurveZMQ (Z85 text): the server's public key, and its own pair."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: str) -> CurveKeys:
        """Read the file that `pytriton-daemon keys add` wrote.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no such file.
        """
        import zmq.auth

        public, secret = zmq.auth.load_certificate(path)
        with open(path, encoding="utf-8") as file:
            match = re.search(rf'^\s*{SERVER_KEY} = "?(\S{{40}}?)"?$', file.read(), re.MULTILINE)
        if secret is None or match is None:
            raise ValueError(f"{path} is no client's key file: it lacks a secret key or a server's")
        return cls(match[1].encode(), public, secret)


def frames(
    request_id: bytes, message: messages.AnyMessage, payloads: Sequence[bytes] = ()
) -> list[bytes]:
    """Return the frames of one message, without the ROUTER's identity frame."""
    return [request_id, messages.encode(message), *payloads]


def offer(message: messages.AnyMessage, parts: Sequence[bytes]) -> messages.Offer | None:
    """Return what asks whether the frames of a message may be sent; None if they are small enough not to ask."""
    _, encoded, *payloads = parts
    largest = max(map(len, payloads), default=0)
    if max(len(encoded), largest) <= ALWAYS_TAKEN_BYTES:
        return None
    what = type(message).__name__
    if isinstance(message, messages.Register):
        what = f"model {message.spec.name}"
    return messages.Offer(what, len(encoded), largest, len(payloads))


def parse(parts: Sequence[bytes]) -> tuple[bytes, messages.AnyMessage, list[bytes]]:
    """Return (request id, message, payloads) of the frames of one message.

    Raises:
        MalformedMessage: the frames are not those of one message.
    """
    if len(parts) < 2 or len(parts[0]) != len(UNASKED):
        raise messages.MalformedMessage(f"expected request id and message, got {len(parts)} frames")
    return parts[0], messages.decode(parts[1]), list(parts[2:])


_TROUBLES: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know this client's key: it was never added, or was removed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not take connections of this kind: the key file is missing",
}
_NOT_AGREED = "it closed the connection at once: the key file is of another daemon, or something else listens there"
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class ControlClient(Closeable):
    """The asking end of the control socket, for one thread.

    Example::

        with ControlClient(rundir.control_endpoint) as control:
            models = control.ask(messages.ListModels(), timeout_s=5)
    """

    def __init__(
        self,
        endpoint: str,
        keys: CurveKeys | None = None,
        *,
        watched: bool = False,
        identity: bytes | None = None,
    ) -> None:
        """Connect; nothing is waited for.

        Args:
            endpoint: where the dispatcher listens
            keys: for TCP
            watched: `watch` tells what becomes of the connection
            identity: by which the dispatcher knows it, also when another version of it has taken its place
        """
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.maxmsgsize = MAX_FRAME_BYTES
        if identity is not None:
            self._socket.routing_id = identity
        self._events: zmq.Socket[bytes] | None = None
        if not endpoint.startswith("ipc:"):
            self._socket.ipv6 = "[" in endpoint
            self._socket.heartbeat_ivl = HEARTBEAT_MS
            self._socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
            watched = True
        if watched:
            self._events = self._socket.get_monitor_socket(_EVENTS)
        if keys is not None:
            self._socket.curve_serverkey = keys.server
            self._socket.curve_publickey = keys.public
            self._socket.curve_secretkey = keys.secret
        #: Over TCP, or `watched`: whether the two ends have agreed, and what went wrong with the connection.
        self.agreed = False
        self.trouble: str | None = None
        self._socket.connect(endpoint)
        self._ids = itertools.count(1)

    @property
    def fileno(self) -> int:
        """The file descriptor that becomes readable when `receive` may have something (edge-triggered)."""
        return int(self._socket.getsockopt(zmq.FD))

    @property
    def broken(self) -> bool:
        """Whether the connection, which is watched, has ended: what was asked on it has no answer any more."""
        self.watch()
        return self.trouble is not None

    @property
    def events_fileno(self) -> int:
        """The file descriptor that becomes readable when `watch` may see something (edge-triggered)."""
        assert self._events is not None  # it is watched
        return int(self._events.getsockopt(zmq.FD))

    def close(self) -> None:
        """Close the socket; what was not sent yet is dropped."""
        if self._events is not None:
            self._socket.disable_monitor()
            self._events.close()
        self._socket.close()
        self._context.term()

    def watch(self) -> None:
        """See what has become of a connection that is watched: sets `agreed` and `trouble`.

        A ZeroMQ socket connects again by itself, but what was asked on the old connection has no answer any more.
        """
        from zmq.utils.monitor import recv_monitor_message

        while self._events is not None and self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.agreed = True
            elif self.trouble is None:
                self.trouble = _TROUBLES.get(
                    int(event), "it closed the connection" if self.agreed else _NOT_AGREED
                )

    def flush(self, timeout_s: float = 5.0) -> None:
        """Have `close` wait until what was sent has left this process, for at most `timeout_s`."""
        self._socket.linger = round(timeout_s * 1000)

    def send(self, message: messages.AnyMessage, payloads: Sequence[bytes] = ()) -> bytes:
        """Send a message and return its request id."""
        parts = self._frames(message, payloads)
        self._socket.send_multipart(parts, copy=False)
        return parts[0]

    def _frames(self, message: messages.AnyMessage, payloads: Sequence[bytes]) -> list[bytes]:
        return frames(next(self._ids).to_bytes(8, "little"), message, payloads)

    def receive(
        self, timeout_s: float | None = None
    ) -> tuple[bytes, messages.AnyMessage, list[bytes]] | None:
        """Return the next message, or None when none came within `timeout_s` (None: wait for ever).

        Raises:
            MalformedMessage: what came is no message of this protocol.
        """
        wait_ms = None if timeout_s is None else max(0, round(timeout_s * 1000))
        if not self._socket.poll(wait_ms):
            return None
        return parse(self._socket.recv_multipart())

    def ask(
        self,
        message: messages.AnyMessage,
        payloads: Sequence[bytes] = (),
        *,
        timeout_s: float | None,
        on_progress: Callable[[messages.Progress], None] | None = None,
        life_sign_s: float | None = None,
        is_alive: Callable[[], bool] = lambda: True,
        on_unasked: OnUnasked | None = None,
    ) -> messages.AnyMessage:
        """Send a message and return its answer; `timeout_s` is the longest silence, not the whole wait.

        ZeroMQ does not tell that the other end is gone: every `life_sign_s` seconds of silence,
        `is_alive` is asked. Interrupted by an exception (Ctrl-C), it tells the dispatcher that nobody
        waits any more (Cancel). `on_unasked` gets what the dispatcher sends of its own accord meanwhile.
        A large message is sent only when the dispatcher has said that it takes it.

        Raises:
            RemoteFailure: the dispatcher answered with a Failure.
            ControlTimeout: it said nothing for `timeout_s` seconds, or it is gone.
            MalformedMessage: it speaks another protocol, so is of another version.
        """
        parts = self._frames(message, payloads)
        question = offer(message, parts)
        if question is not None:
            self._await(self.send(question), timeout_s, None, life_sign_s, is_alive, on_unasked)
        request_id = parts[0]
        self._socket.send_multipart(parts, copy=False)
        try:
            return self._await(
                request_id, timeout_s, on_progress, life_sign_s, is_alive, on_unasked
            )
        except (RemoteFailure, ControlTimeout, messages.MalformedMessage):
            raise
        except BaseException:  # Ctrl-C, or whatever `on_progress` raised
            self.send(messages.Cancel(request_id))
            self.flush(_CANCEL_S)
            raise

    def _await(
        self,
        request_id: bytes,
        timeout_s: float | None,
        on_progress: Callable[[messages.Progress], None] | None,
        life_sign_s: float | None,
        is_alive: Callable[[], bool],
        on_unasked: OnUnasked | None,
    ) -> messages.AnyMessage:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_s = min((s for s in (left, life_sign_s) if s is not None), default=None)
            received = self.receive(wait_s)
            if received is None:
                if not is_alive():
                    raise ControlTimeout("it ended before it answered")
                if deadline is not None and time.monotonic() >= deadline:
                    raise ControlTimeout(f"no answer within {timeout_s:g} s")
                continue
            answered, reply, _ = received
            if answered == UNASKED and on_unasked is not None:
                on_unasked(reply)
            if answered != request_id:
                continue  # the answer to a question whose asker gave up
            if isinstance(reply, messages.Progress):
                if on_progress is not None:
                    on_progress(reply)
                deadline = None if timeout_s is None else time.monotonic() + timeout_s
            elif isinstance(reply, messages.Failure):
                raise RemoteFailure(_kind_of(reply), reply.text, reply.traceback)
            else:
                return reply


def _kind_of(failure: messages.Failure) -> ErrorKind:
    try:
        return ErrorKind(failure.kind)
    except ValueError:  # a newer dispatcher's kind
        return ErrorKind.INTERNAL
