"""The daemon's control socket: checks and parses each message, and calls its handler.

Each message passes these checks::

    frames ▶ sender admitted? ▶ small enough? ▶ valid message? ▶ below request limit? ▶ handler, in a separate task
                no: Refused      no: Refused     no: Refused        no: Refused

A refused message is answered with a Failure and logged, at most once a minute for each sender. Frames without a
request id are dropped, since they cannot be answered.
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
    KeyAuthenticator,
    KeyGuard,
    LocalGuard,
    MessageRefused,
    RefusalLog,
    Sender,
    describe_sender,
    message_sender,
)
from pytriton.dispatcher.control.pending_requests import PendingRequests
from pytriton.dispatcher.telemetry.events.events import acting_for

_log = structlog.get_logger(__name__)

#: Limit of unread messages per peer; the ROUTER drops all further ones (ZMQ_SNDHWM). Must exceed the number of
#: reports of a registration; the largest answer is `handlers.MAX_LOG_BYTES`.
_MAX_UNREAD = 256
#: Number of messages that ZeroMQ reads ahead from each peer (ZMQ_RCVHWM).
_MAX_READ_AHEAD = 16
#: Maximum size of a message frame, without payloads.
MAX_MESSAGE_BYTES = control.ALWAYS_ACCEPTED_BYTES
#: Maximum number of payload frames in a message: one for each instance of a model.
MAX_PAYLOADS = 1024
#: Maximum length of a sender's text that is quoted in answers.
_MAX_QUOTED_LEN = 250
#: Backlog of the listening socket.
_BACKLOG = 512
#: Messages that wait while the daemon is being upgraded.
_CHANGES = (*get_args(Changing), messages.LoadOther, messages.UnloadOther)
#: Those that a change in progress may depend on: a callable may request another model while it loads.
_NESTED_CHANGES = (messages.LoadOther, messages.UnloadOther)
#: Messages whose sender is recorded in the audit, including those that stop or upgrade the daemon.
_AUDITED = (*_CHANGES, messages.Shutdown, messages.Drain, messages.Upgrade)
#: Timeout for looking up the name of a sender's user, which may need a server.
_MAX_DESCRIBE_S = 1.0
#: Requests that can be cancelled, and are cancelled when the client exits. All others are quick, or must finish.
_ABANDONABLE = (messages.Register, messages.ProfileWorker)

#: The name of the TCP socket for ZeroMQ's authenticator. The unix socket has no name, so it is not authenticated.
_DOMAIN = "pytriton-daemon"

Handler = Callable[
    ["Peer", messages.AnyMessage, Sequence[bytes]], Awaitable[Optional[messages.AnyMessage]]
]


@dataclass(frozen=True)
class Peer:
    """The sender of a message, and how to answer it. Each answer carries `request_id`."""

    _socket: _GuardedSocket
    identity: bytes
    request_id: bytes
    sender: Sender

    async def reply(self, message: messages.AnyMessage) -> None:
        """Answer the message, or report progress."""
        await self._send(self.request_id, message, ())

    async def send(self, message: messages.AnyMessage, payloads: Sequence[bytes] = ()) -> None:
        """Send the peer an unsolicited message."""
        await self._send(control.UNSOLICITED, message, payloads)

    async def _send(
        self, request_id: bytes, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        # A ROUTER drops what it cannot deliver: the peer has disconnected, which is detected elsewhere.
        await self._socket.socket.send_multipart(
            [self.identity, *control.frames(request_id, message, payloads)], copy=False
        )


class Guard(Protocol):
    """Access control for a socket: identifies the sender of a frame, or raises MessageRefused."""

    def admit(self, frame: zmq.Frame) -> Sender: ...


@dataclass(eq=False)
class _GuardedSocket:
    """A ROUTER socket, its guard, and its requests in progress."""

    socket: zmq.asyncio.Socket
    guard: Guard
    requests: PendingRequests = field(default_factory=PendingRequests)


class ControlServer:
    """Server of the control sockets, which are ROUTER sockets.

    Args:
        endpoint: the endpoint to listen on, ipc://...
        handle: awaited with every admitted message, each in a separate task
        group: name of a group whose members may connect, too
        max_payload_size: maximum size of a payload in bytes. A larger one without an Offer is refused if it has at most
            `control.ALWAYS_ACCEPTED_BYTES`; otherwise ZeroMQ disconnects the peer
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
        self._sockets: list[_GuardedSocket] = []
        self._local: _GuardedSocket | None = None
        self._bound = asyncio.Event()
        self._receiving: list[asyncio.Task[None]] = []
        self._keys = keys
        self._authenticator: AsyncioAuthenticator | None = None
        self._reply_tasks: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog()
        self._listener: socket.socket | None = None
        self._open = asyncio.Event()
        self._open.set()
        #: The number of changes in progress.
        self.changing = 0
        #: The number of answered messages, by type and outcome: "done", "refused", or the kind of the failure.
        self.answered: Counter[tuple[str, str]] = Counter()

    def bind(self, listener: int | None = None) -> None:
        """Listen. The modes of the socket's file and of its directory make the socket private.

        The socket is created here, not by ZeroMQ, so that it survives an upgrade: pass its descriptor as `listener`.
        Clients that connect during the upgrade wait.

        Raises:
            PortError: the socket cannot be bound.
        """
        if self._bound.is_set():
            raise RuntimeError(f"{self._endpoint} is already bound")
        path = Path(self._endpoint[len("ipc://") :])
        if listener is not None:
            self._listener = socket.socket(fileno=listener)
        elif self._listener is None:
            self._listener = listening_at(path, backlog=_BACKLOG)
            share(path, self._group)
        router = self._router()
        if self._local is None:
            self._local = _GuardedSocket(router, LocalGuard(self._group))
        self._local.socket = (
            router  # a peer that reconnects under its own name replaces its old connection
        )
        self._sockets.append(self._local)
        router.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        router.bind(self._endpoint)
        self._bound.set()

    @property
    def listener(self) -> int:
        """The descriptor of the listening socket."""
        assert self._listener is not None  # it is bound
        return self._listener.fileno()

    def worker(self, name: str) -> Peer:
        """Return a peer that represents a connected or reconnecting worker."""
        assert self._local is not None  # it is bound
        sender = Sender(f"worker {name}")
        return Peer(self._local, control.identity_of(name), control.UNSOLICITED, sender)

    def hold(self) -> None:
        """Make new requests that change something wait until `release` is called. Those in progress continue."""
        self._open.clear()

    def release(self) -> None:
        """Handle the requests that have been waiting since `hold`."""
        self._open.set()

    def listen_tcp(self, address: str) -> str:
        """Also listen on HOST:PORT for clients with a key. Return the endpoint with the actual port.

        Raises:
            KeyStoreError: there is no server key.
            zmq.ZMQError: the address is in use, or does not belong to this machine.
        """
        assert self._keys is not None
        public, secret = self._keys.server_keys()
        if self._context is None:
            self._context = zmq.asyncio.Context()
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, KeyAuthenticator(self._keys))
        router = self._router()
        self._sockets.append(_GuardedSocket(router, KeyGuard(self._keys)))
        router.ipv6 = "[" in address
        router.zap_domain = _DOMAIN.encode()
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = public, secret
        router.heartbeat_ivl = control.HEARTBEAT_MS
        router.heartbeat_timeout = control.HEARTBEAT_TIMEOUT_MS
        router.bind(f"tcp://{address}")
        return str(router.getsockopt_string(zmq.LAST_ENDPOINT))

    async def serve(self) -> None:
        """Receive messages until cancelled. Pause while the socket is suspended."""
        while True:
            await self._bound.wait()
            self._receiving = [
                asyncio.create_task(self._serve(guarded)) for guarded in self._sockets
            ]
            try:
                await asyncio.wait(self._receiving, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in self._receiving:
                    task.cancel()
            for ended in await asyncio.gather(*self._receiving, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    raise ended or AssertionError("a socket is served until cancelled")

    async def close(self) -> None:
        """Stop answering and close the socket."""
        await self.suspend()
        if self._listener is not None:
            self._listener.close()

    async def suspend(self) -> None:
        """Send pending answers, then stop answering until `bind` is called. The socket still listens, and new clients
        wait.
        """
        self._bound.clear()
        for task in self._receiving:
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)
        for guarded in self._sockets:
            await guarded.requests.end()
        await asyncio.gather(*self._reply_tasks, return_exceptions=True)
        for guarded in self._sockets:
            guarded.socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if self._context is not None:
            self._context.term()
        self._context, self._sockets = None, []

    def _router(self) -> zmq.asyncio.Socket:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        router = self._context.socket(zmq.ROUTER)
        router.linger = 1000
        router.maxmsgsize = max(self._max_payload_size, control.ALWAYS_ACCEPTED_BYTES)
        router.sndhwm = _MAX_UNREAD
        router.rcvhwm = _MAX_READ_AHEAD
        return router

    async def _serve(self, guarded: _GuardedSocket) -> None:
        while True:
            identity, *frames = await guarded.socket.recv_multipart(copy=False)
            try:
                self._take(guarded, identity, frames)
            except messages.MalformedMessage as error:
                sender = message_sender(identity)
                self._refusals.report("malformed control message dropped", sender, str(error))
                self.answered["malformed", "refused"] += 1

    def _take(
        self, guarded: _GuardedSocket, identity: zmq.Frame, frames: Sequence[zmq.Frame]
    ) -> None:
        """Start handling a message, or refuse it.

        Raises:
            MalformedMessage: the frames are not a message and cannot be answered.
        """
        if not frames or len(frames[0]) != len(control.UNSOLICITED):
            raise messages.MalformedMessage(f"no request id in {len(frames)} frames")
        sender = Sender(message_sender(identity))
        peer = Peer(guarded, identity.bytes, frames[0].bytes, sender)
        try:
            peer = replace(peer, sender=guarded.guard.admit(identity))
            self._check_sizes(_sizes(frames))
            message, payloads = _parsed(frames)
            if isinstance(message, messages.Offer):
                self._check_sizes(message)
                self._reply_soon(peer, messages.Done())
            elif isinstance(message, messages.Cancel):
                guarded.requests.abandon(
                    peer.identity, message.request_id, "its client cancelled it"
                )
            else:
                self._begin(guarded, peer, message, payloads)
        except MessageRefused as refusal:
            self._refusals.report("control message refused", peer.sender.name, str(refusal))
            self.answered["any", "refused"] += 1
            self._reply_soon(peer, messages.Failure(refusal.kind.value, str(refusal)))

    def _check_sizes(self, sizes: messages.Offer) -> None:
        """Raise MessageRefused if a message has too many frames, or a frame that is too large."""
        if sizes.payloads > MAX_PAYLOADS:
            raise MessageRefused(
                f"{sizes.payloads} payloads in one message, but at most {MAX_PAYLOADS} are accepted"
            )
        if sizes.message_bytes > MAX_MESSAGE_BYTES:
            raise MessageRefused(
                f"{sizes.what[:_MAX_QUOTED_LEN]}: {sizes.message_bytes} bytes without its payloads, but at most "
                f"{MAX_MESSAGE_BYTES} are accepted. Large values belong in the callable, not in its declaration or "
                "environment"
            )
        if sizes.payload_bytes > self._max_payload_size:
            raise MessageRefused(
                f"{sizes.what[:_MAX_QUOTED_LEN]}: a payload (a pickled callable) has {sizes.payload_bytes} bytes, but "
                f"this daemon accepts at most {self._max_payload_size}. Load large data in "
                "the worker: register a class or function that loads it, with factory=True"
            )

    def _reply_soon(self, peer: Peer, answer: messages.AnyMessage) -> None:
        task = asyncio.create_task(peer.reply(answer))
        self._reply_tasks.add(task)
        task.add_done_callback(self._reply_tasks.discard)

    def _begin(
        self,
        guarded: _GuardedSocket,
        peer: Peer,
        message: messages.AnyMessage,
        payloads: Sequence[bytes],
    ) -> None:
        key = peer.identity, peer.request_id
        guarded.requests.check(*key)
        abandonable = isinstance(message, _ABANDONABLE)
        answer = self._answer(peer, message, payloads)
        guarded.requests.begin(*key, answer, abandonable=abandonable)
        if abandonable and peer.sender.pid is not None:
            guarded.requests.watch(*key, peer.sender.pid)

    async def _answer(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        try:
            with acting_for(await self._who(peer.sender, message)):
                reply = await self._carry_out(peer, message, payloads)
        except RemoteFailure as failure:
            reply = messages.Failure(failure.kind.value, failure.text, failure.traceback)
        except Exception as error:
            _log.exception(
                "internal error: message handler failed", message_type=type(message).__name__
            )
            text = f"internal error while handling {type(message).__name__}: {type(error).__name__}: {error}"
            reply = messages.Failure(ErrorKind.INTERNAL.value, text)
        outcome = reply.kind if isinstance(reply, messages.Failure) else "done"
        self.answered[type(message).__name__, outcome] += 1
        if reply is not None:
            await peer.reply(reply)

    async def _who(self, sender: Sender, message: messages.AnyMessage) -> str:
        """Describe the sender for the audit log. If the message does not change anything, return only the sender's
        name.
        """
        if sender.uid is None or not isinstance(message, _AUDITED):
            return sender.name
        try:
            return await asyncio.wait_for(
                asyncio.to_thread(describe_sender, sender), _MAX_DESCRIBE_S
            )
        except asyncio.TimeoutError:  # the server for user names does not answer
            return sender.name

    async def _carry_out(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> messages.AnyMessage | None:
        if not isinstance(message, _CHANGES):
            return await self._handle(peer, message, payloads)
        while not self._open.is_set():  # changes may be suspended again by the time this task runs
            if self.changing and isinstance(message, _NESTED_CHANGES):
                break
            await self._open.wait()
        self.changing += 1
        try:
            return await self._handle(peer, message, payloads)
        finally:
            self.changing -= 1


def _sizes(frames: Sequence[zmq.Frame]) -> messages.Offer:
    """Return the sizes of a received message, as an Offer."""
    message, *payloads = [len(frame) for frame in frames[1:]] or [0]
    return messages.Offer("a message", message, max(payloads, default=0), len(payloads))


def _parsed(frames: Sequence[zmq.Frame]) -> tuple[messages.AnyMessage, list[bytes]]:
    """Return the message and its payloads. Raises MessageRefused if it is invalid or unknown."""
    try:
        _, message, payloads = control.parse([frame.bytes for frame in frames])
    except messages.MalformedMessage as error:
        why = str(error)[:_MAX_QUOTED_LEN]  # it may quote the message
        raise MessageRefused(
            f"this daemon cannot read the message: {why}. Use a client of the same version as the daemon"
        ) from error
    return message, payloads
