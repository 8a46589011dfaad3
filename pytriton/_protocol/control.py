"""The control socket: ZeroMQ DEALER (client, worker, proxy) to ROUTER (dispatcher) over a unix socket.

Frames, after the ROUTER's identity frame::

    [ request id: 8 bytes ][ message: see messages ][ payload ]*

A reply, and each Progress before it, carries the id of its request. Unsolicited messages from the dispatcher
(LoadModel, WithdrawLane) carry `UNSOLICITED` instead. Payloads are users' bytes, which are not deserialized here.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure

#: Request id of unsolicited messages.
UNSOLICITED = bytes(8)
#: Maximum frame size the dispatcher accepts (ZeroMQ disconnects the peer beyond it).
MAX_FRAME_BYTES = 4 << 30
#: Frames up to this size always reach the dispatcher, whatever its settings, though it may still reject the message.
#: Covers the largest message without payloads (a model's declaration, environment and search path).
ALWAYS_ACCEPTED_BYTES = 8 << 20
#: Maximum wait for a Cancel to leave this process, in seconds.
_CANCEL_S = 1.0

#: Handles an unsolicited message from the dispatcher.
OnUnsolicited = Callable[[messages.AnyMessage], None]

#: Metadata key in a client's key file: the public key of its server.
SERVER_KEY = "server-public-key"
#: TCP keep-alive: the ping interval, and the silence after which the connection counts as broken.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000


def identity_of(worker: str) -> bytes:
    """Return the ZeroMQ identity of a worker's connection."""
    return f"worker {worker}".encode()


class ControlTimeout(Exception):
    """The dispatcher did not answer in time."""


@dataclass(frozen=True)
class CurveKeys:
    """The CurveZMQ keys of a client (as Z85 text): the server's public key, and the client's own key pair."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: str) -> CurveKeys:
        """Read a key file written by `pytriton-daemon keys add`.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a client key file.
        """
        import zmq.auth

        public, secret = zmq.auth.load_certificate(path)
        with open(path, encoding="utf-8") as file:
            match = re.search(rf'^\s*{SERVER_KEY} = "?(\S{{40}}?)"?$', file.read(), re.MULTILINE)
        if secret is None or match is None:
            raise ValueError(
                f"{path} is not a client key file: it lacks a secret key or the server's public key"
            )
        return cls(match[1].encode(), public, secret)


def frames(
    request_id: bytes, message: messages.AnyMessage, payloads: Sequence[bytes] = ()
) -> list[bytes]:
    """Encode a message and its payloads as frames, without the ROUTER's identity frame."""
    return [request_id, messages.encode(message), *payloads]


def offer(message: messages.AnyMessage, parts: Sequence[bytes]) -> messages.Offer | None:
    """Return the Offer that must be sent before a message; None if all frames of the message are small."""
    _, encoded, *payloads = parts
    largest = max(map(len, payloads), default=0)
    if max(len(encoded), largest) <= ALWAYS_ACCEPTED_BYTES:
        return None
    what = type(message).__name__
    if isinstance(message, messages.Register):
        what = f"model {message.spec.name}"
    return messages.Offer(what, len(encoded), largest, len(payloads))


def parse(parts: Sequence[bytes]) -> tuple[bytes, messages.AnyMessage, list[bytes]]:
    """Parse the frames of one message, and return (request id, message, payloads).

    Raises:
        MalformedMessage: the frames are not a valid message.
    """
    if len(parts) < 2 or len(parts[0]) != len(UNSOLICITED):
        raise messages.MalformedMessage(f"expected request id and message, got {len(parts)} frames")
    return parts[0], messages.decode(parts[1]), list(parts[2:])


_TROUBLES: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know this client's key: it was never added, or was removed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not accept connections without a key: the key file is missing",
}
_NOT_AGREED = "it closed the connection immediately: the key file belongs to another daemon, or something else listens there"
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class ControlClient:
    """The client end of the control socket, for use by one thread.

    Example::

        with closing(ControlClient(rundir.control_endpoint)) as control:
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
        """Start connecting; do not wait for the dispatcher.

        Args:
            endpoint: the dispatcher's endpoint
            keys: the client's keys, for TCP
            watched: monitor the connection; `watch` reports its state
            identity: the ZeroMQ identity, by which the dispatcher recognizes the client even after an upgrade
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
        #: Over TCP, or if `watched`: whether the handshake succeeded, and what went wrong with the connection.
        self.agreed = False
        self.trouble: str | None = None
        self._socket.connect(endpoint)
        self._ids = itertools.count(1)

    @property
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `receive` may have a message (edge-triggered)."""
        return int(self._socket.getsockopt(zmq.FD))

    @property
    def broken(self) -> bool:
        """Return True if a watched connection has ended. Its outstanding requests get no answer."""
        self.watch()
        return self.trouble is not None

    @property
    def events_fileno(self) -> int:
        """Return the descriptor that becomes readable when the state of the connection may have changed (edge-triggered)."""
        assert self._events is not None  # requires a watched connection
        return int(self._events.getsockopt(zmq.FD))

    def close(self) -> None:
        """Close the socket and drop unsent messages."""
        if self._events is not None:
            self._socket.disable_monitor()
            self._events.close()
        self._socket.close()
        self._context.term()

    def watch(self) -> None:
        """Check a watched connection and update `agreed` and `trouble`.

        A ZeroMQ socket reconnects automatically, but requests sent on the old connection are never answered.
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
        """Make `close` wait up to `timeout_s` seconds until all sent messages have left this process."""
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
        """Return the next message, or None if none arrives within `timeout_s` (None waits forever).

        Raises:
            MalformedMessage: the frames received are not a valid message.
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
        on_unsolicited: OnUnsolicited | None = None,
    ) -> messages.AnyMessage:
        """Send a message and return its answer. `timeout_s` limits the dispatcher's silence, not the total time.

        ZeroMQ does not report that the peer has exited, so `is_alive` is called after every `life_sign_s` seconds of
        silence. If an exception such as Ctrl-C interrupts the wait, the request is cancelled. `on_unsolicited` gets the
        unsolicited messages that arrive during the wait. A large message is sent only after the dispatcher has accepted
        its size.

        Raises:
            RemoteFailure: the dispatcher answered with a Failure.
            ControlTimeout: the dispatcher was silent for `timeout_s` seconds, or has exited.
            MalformedMessage: the dispatcher speaks another protocol version.
        """
        parts = self._frames(message, payloads)
        question = offer(message, parts)
        if question is not None:
            self._await(self.send(question), timeout_s, None, life_sign_s, is_alive, on_unsolicited)
        request_id = parts[0]
        self._socket.send_multipart(parts, copy=False)
        try:
            return self._await(
                request_id, timeout_s, on_progress, life_sign_s, is_alive, on_unsolicited
            )
        except (RemoteFailure, ControlTimeout, messages.MalformedMessage):
            raise
        except BaseException:  # Ctrl-C, or an exception from `on_progress`
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
        on_unsolicited: OnUnsolicited | None,
    ) -> messages.AnyMessage:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_s = min((s for s in (left, life_sign_s) if s is not None), default=None)
            received = self.receive(wait_s)
            if received is None and not is_alive():
                received = self.receive(0)  # it may have answered just before its exit
                if received is None:
                    raise ControlTimeout("it exited before it answered")
            if received is None:
                if deadline is not None and time.monotonic() >= deadline:
                    raise ControlTimeout(f"no answer within {timeout_s:g} s")
                continue
            answered, reply, _ = received
            if answered == UNSOLICITED and on_unsolicited is not None:
                on_unsolicited(reply)
            if answered != request_id:
                continue  # the answer to an abandoned request
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
    except ValueError:  # a kind added by a newer dispatcher
        return ErrorKind.INTERNAL
