"""The dispatcher's control socket: it admits and parses messages and calls their handler.

The checks that a message passes on its way::

    frames ▶ who sent it may? ▶ small enough? ▶ a message? ▶ not too many under way? ▶ handler, in a task of its own
               no: Refused       no: Refused     no: Refused    no: Refused

A refused message is answered with a Failure and logged, at most once a minute for each sender. Frames without the id
of a request are dropped: there is nothing to answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional, Protocol, get_args

import structlog
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from pytriton._host.client_keys import KeyStore
from pytriton._host.ports import listening_at
from pytriton._protocol import control, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.files.rundir import share
from pytriton._protocol.messages.client import Changing
from pytriton.dispatcher.control.peers import (
    Admitted,
    KeyGuard,
    LocalGuard,
    RefusalLog,
    Refused,
    Sender,
    describe_sender,
    message_sender,
)
from pytriton.dispatcher.control.pending_requests import Requests
from pytriton.dispatcher.telemetry.events.actor import acting_for

_log = structlog.get_logger(__name__)

#: Messages that wait for a peer who does not read them; the ROUTER drops all further ones (ZMQ_SNDHWM). More than
#: the reports of a registration; the largest answer is `handlers.MOST_LOG_BYTES`.
_MOST_UNREAD = 256
#: Messages that ZeroMQ receives ahead of us from each peer (ZMQ_RCVHWM).
_MOST_AHEAD = 16
#: The largest message frame, without payloads.
MOST_MESSAGE_BYTES = control.ALWAYS_TAKEN_BYTES
#: Payload frames of one message: one for each instance of a model.
MOST_PAYLOADS = 1024
#: The characters of what a sender has written, in our words to it.
_LONGEST_NAME = 250
#: Connections that wait until they are taken.
_BACKLOG = 512
#: Messages that wait while the daemon is being upgraded.
_CHANGES = (*get_args(Changing), messages.LoadOther, messages.UnloadOther)
#: Those of them that a change under way may wait for: a callable asks for another model while it loads.
_WAITED_FOR = (messages.LoadOther, messages.UnloadOther)
#: Messages whose sender the audit names: also those that end the daemon, or hand it over.
_AUDITED = (*_CHANGES, messages.Shutdown, messages.Drain, messages.Upgrade)
#: Time to find out the name of a sender's user, which may be known to a server only.
_MAX_DESCRIBE_S = 1.0
#: Requests that a client may give up, and that end with a client that vanishes. All others are quick, or must finish.
_ABANDONABLE = (messages.Register, messages.ProfileWorker)

#: The name of the TCP socket for ZeroMQ's authenticator. The unix socket has no name, so nobody asks for it there.
_DOMAIN = "pytriton-daemon"

Handler = Callable[
    ["Peer", messages.AnyMessage, Sequence[bytes]], Awaitable[Optional[messages.AnyMessage]]
]


@dataclass(frozen=True)
class Peer:
    """The sender of a message, with all that an answer needs: the answer carries `request_id`."""

    _door: _Door
    identity: bytes
    request_id: bytes
    sender: Sender

    async def reply(self, message: messages.AnyMessage) -> None:
        """Answer the message, or report on the way to an answer."""
        await self._send(self.request_id, message, ())

    async def send(self, message: messages.AnyMessage, payloads: Sequence[bytes] = ()) -> None:
        """Send the peer a message that answers no request."""
        await self._send(control.UNASKED, message, payloads)

    async def _send(
        self, request_id: bytes, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        # A ROUTER drops what it cannot deliver: the peer is gone, and its end is noticed elsewhere.
        await self._door.socket.send_multipart(
            [self.identity, *control.frames(request_id, message, payloads)], copy=False
        )


class Guard(Protocol):
    """Identifies the sender of a frame, or raises Refused."""

    def admit(self, frame: zmq.Frame) -> Sender: ...


@dataclass(eq=False)
class _Door:
    """One ROUTER socket, with its guard and the requests under way."""

    socket: zmq.asyncio.Socket
    guard: Guard
    requests: Requests = field(default_factory=Requests)


class ControlServer:
    """The ROUTER socket. `handle` is awaited in a task of its own for every message.

    Args:
        endpoint: where to listen, ipc://...
        handle: is given every message that was admitted
        group: name of the group whose members may connect, too
        max_payload_size: bytes of one payload; ZeroMQ disconnects a peer that sends a larger one without having
            asked (Offer), unless it is small (`control.ALWAYS_TAKEN_BYTES`): then it is refused
        keys: for `listen_tcp`: the server's key, and those of the clients that may connect
    """

    def __init__(
        self,
        endpoint: str,
        handle: Handler,
        *,
        group: str | None = None,
        max_payload_size: int = control.MAX_FRAME_BYTES,
        keys: KeyStore | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._handle = handle
        self._group = group
        self._max_payload_size = max_payload_size
        self._context: zmq.asyncio.Context | None = None
        self._doors: list[_Door] = []
        self._local: _Door | None = None
        self._bound = asyncio.Event()
        self._receiving: list[asyncio.Task[None]] = []
        self._keys = keys
        self._authenticator: AsyncioAuthenticator | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog()
        self._listener: socket.socket | None = None
        self._open = asyncio.Event()
        self._open.set()
        #: How many messages that change something are being carried out.
        self.changing = 0
        #: How many messages have been answered, by type and outcome: "done", "refused", or the kind of the failure.
        self.answered: Counter[tuple[str, str]] = Counter()

    def bind(self, listener: int | None = None) -> None:
        """Listen; the socket's file is private because its directory is, and because of its own mode.

        The socket is ours and not ZeroMQ's, so that another version of this process can have it (`listener`): clients
        that connect meanwhile wait.

        Raises:
            PortError: it cannot be.
        """
        if self._bound.is_set():
            raise RuntimeError(f"{self._endpoint} is bound already")
        path = Path(self._endpoint[len("ipc://") :])
        if listener is not None:
            self._listener = socket.socket(fileno=listener)
        elif self._listener is None:
            self._listener = listening_at(path, backlog=_BACKLOG)
            share(path, self._group)
        router = self._router()
        if self._local is None:
            self._local = _Door(router, LocalGuard(self._group))
        self._local.socket = router  # who is known by a name of its own is known again
        self._doors.append(self._local)
        router.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        router.bind(self._endpoint)
        self._bound.set()

    @property
    def listener(self) -> int:
        """The descriptor of the listening socket."""
        assert self._listener is not None  # it is bound
        return self._listener.fileno()

    def worker(self, name: str) -> Peer:
        """Return a worker that is connected, or is about to be again."""
        assert self._local is not None  # it is bound
        sender = Sender(f"worker {name}")
        return Peer(self._local, control.identity_of(name), control.UNASKED, sender)

    def hold(self) -> None:
        """Make requests that change something wait until `release`; those under way go on."""
        self._open.clear()

    def release(self) -> None:
        """Carry out the requests that wait."""
        self._open.set()

    def listen_tcp(self, address: str) -> str:
        """Listen on HOST:PORT, too, for clients with a key; return the endpoint, with the port that it got.

        Raises:
            KeyStoreError: there is no server key.
            zmq.ZMQError: the address is taken, or not one of this machine.
        """
        assert self._keys is not None
        public, secret = self._keys.server_keys()
        if self._context is None:
            self._context = zmq.asyncio.Context()
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, Admitted(self._keys))
        router = self._router()
        self._doors.append(_Door(router, KeyGuard(self._keys)))
        router.ipv6 = "[" in address
        router.zap_domain = _DOMAIN.encode()
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = public, secret
        router.heartbeat_ivl = control.HEARTBEAT_MS
        router.heartbeat_timeout = control.HEARTBEAT_TIMEOUT_MS
        router.bind(f"tcp://{address}")
        return str(router.getsockopt_string(zmq.LAST_ENDPOINT))

    async def serve(self) -> None:
        """Receive until cancelled; pause while the socket is suspended."""
        while True:
            await self._bound.wait()
            self._receiving = [asyncio.create_task(self._serve(door)) for door in self._doors]
            try:
                await asyncio.wait(self._receiving, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in self._receiving:
                    task.cancel()
            for ended in await asyncio.gather(*self._receiving, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    raise ended or AssertionError("a door is served for ever")

    async def close(self) -> None:
        """Stop answering and close the socket."""
        await self.suspend()
        if self._listener is not None:
            self._listener.close()

    async def suspend(self) -> None:
        """Stop answering, and still listen: clients that connect wait. Answers are sent before that; `bind` goes on."""
        self._bound.clear()
        for task in self._receiving:
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)
        for door in self._doors:
            await door.requests.end()
        await asyncio.gather(*self._telling, return_exceptions=True)
        for door in self._doors:
            door.socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if self._context is not None:
            self._context.term()
        self._context, self._doors = None, []

    def _router(self) -> zmq.asyncio.Socket:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        router = self._context.socket(zmq.ROUTER)
        router.linger = 1000
        router.maxmsgsize = max(self._max_payload_size, control.ALWAYS_TAKEN_BYTES)
        router.sndhwm = _MOST_UNREAD
        router.rcvhwm = _MOST_AHEAD
        return router

    async def _serve(self, door: _Door) -> None:
        while True:
            identity, *frames = await door.socket.recv_multipart(copy=False)
            try:
                self._take(door, identity, frames)
            except messages.MalformedMessage as error:
                sender = message_sender(identity)
                self._refusals.tell("malformed control message dropped", sender, str(error))
                self.answered["malformed", "refused"] += 1

    def _take(self, door: _Door, identity: zmq.Frame, frames: Sequence[zmq.Frame]) -> None:
        """Begin to answer one message, or refuse it.

        Raises:
            MalformedMessage: it is none, and nobody can be told so.
        """
        if not frames or len(frames[0]) != len(control.UNASKED):
            raise messages.MalformedMessage(f"no request id in {len(frames)} frames")
        sender = Sender(message_sender(identity))
        peer = Peer(door, identity.bytes, frames[0].bytes, sender)
        try:
            peer = replace(peer, sender=door.guard.admit(identity))
            self._check_sizes(_sizes(frames))
            message, payloads = _parsed(frames)
            if isinstance(message, messages.Offer):
                self._check_sizes(message)
                self._tell(peer, messages.Done())
            elif isinstance(message, messages.Cancel):
                door.requests.abandon(peer.identity, message.request_id, "its client gave it up")
            else:
                self._begin(door, peer, message, payloads)
        except Refused as refusal:
            self._refusals.tell("control message refused", peer.sender.name, str(refusal))
            self.answered["any", "refused"] += 1
            self._tell(peer, messages.Failure(refusal.kind.value, str(refusal)))

    def _check_sizes(self, sizes: messages.Offer) -> None:
        """Raise Refused unless the frames of a message are as many and as small as ours are."""
        if sizes.payloads > MOST_PAYLOADS:
            raise Refused(
                f"{sizes.payloads} payloads in one message: at most {MOST_PAYLOADS} are taken"
            )
        if sizes.message_bytes > MOST_MESSAGE_BYTES:
            raise Refused(
                f"{sizes.what[:_LONGEST_NAME]}: {sizes.message_bytes} bytes without its payloads: at most "
                f"{MOST_MESSAGE_BYTES} are taken. Large values belong into the callable, not into its declaration or "
                "environment"
            )
        if sizes.payload_bytes > self._max_payload_size:
            raise Refused(
                f"{sizes.what[:_LONGEST_NAME]}: a payload (a pickled callable) of {sizes.payload_bytes} bytes: "
                f"this daemon takes at most {self._max_payload_size} (setting max_payload_size). Load what is large in "
                "the worker: register a class or function that does, with factory=True"
            )

    def _tell(self, peer: Peer, answer: messages.AnyMessage) -> None:
        task = asyncio.create_task(peer.reply(answer))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _begin(
        self, door: _Door, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        key = peer.identity, peer.request_id
        door.requests.check(*key)
        abandonable = isinstance(message, _ABANDONABLE)
        answer = self._answer(peer, message, payloads)
        door.requests.begin(*key, answer, abandonable=abandonable)
        if abandonable and peer.sender.pid is not None:
            door.requests.watch(*key, peer.sender.pid)

    async def _answer(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        try:
            with acting_for(await self._who(peer.sender, message)):
                reply = await self._carry_out(peer, message, payloads)
        except RemoteFailure as failure:
            reply = messages.Failure(failure.kind.value, failure.text, failure.traceback)
        except Exception as error:
            _log.exception("handler failed", message_type=type(message).__name__)
            text = f"the daemon failed at {type(message).__name__}: {type(error).__name__}: {error}"
            reply = messages.Failure(ErrorKind.INTERNAL.value, text)
        outcome = reply.kind if isinstance(reply, messages.Failure) else "done"
        self.answered[type(message).__name__, outcome] += 1
        if reply is not None:
            await peer.reply(reply)

    async def _who(self, sender: Sender, message: messages.AnyMessage) -> str:
        """Return the sender as the audit names it; whoever changes nothing is not in the audit."""
        if sender.uid is None or not isinstance(message, _AUDITED):
            return sender.name
        try:
            return await asyncio.wait_for(
                asyncio.to_thread(describe_sender, sender), _MAX_DESCRIBE_S
            )
        except asyncio.TimeoutError:  # a server of user names does not answer
            return sender.name

    async def _carry_out(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage | None:
        if not isinstance(message, _CHANGES):
            return await self._handle(peer, message, payloads)
        while not self._open.is_set():  # still, when it is this one's turn
            if self.changing and isinstance(message, _WAITED_FOR):
                break
            await self._open.wait()
        self.changing += 1
        try:
            return await self._handle(peer, message, payloads)
        finally:
            self.changing -= 1


def _sizes(frames: Sequence[zmq.Frame]) -> messages.Offer:
    """Return the sizes of what has arrived, as a sender that asks first tells them."""
    message, *payloads = [len(frame) for frame in frames[1:]] or [0]
    return messages.Offer("a message", message, max(payloads, default=0), len(payloads))


def _parsed(frames: Sequence[zmq.Frame]) -> tuple[messages.AnyMessage, list[bytes]]:
    """Return the message and its payloads; raises Refused where it is none that is known here."""
    try:
        _, message, payloads = control.parse([frame.bytes for frame in frames])
    except messages.MalformedMessage as error:
        why = str(error)[:_LONGEST_NAME]  # it may quote the message
        raise Refused(
            f"this daemon cannot read the message: {why}. A client of the daemon's own version sends what it can read"
        ) from error
    return message, payloads
