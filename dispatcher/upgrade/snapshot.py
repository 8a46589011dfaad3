"""Snapshot of a daemon's state for its next version, which takes over the same process by execve(2).

    running daemon ──▶ HandOver, in an anonymous file ──▶ execve ──▶ the next version reads it, and adopts the state

The process keeps its children and the descriptors listed in the snapshot: listening sockets, pipes to children, shared
memory. Everything else is serialized. docs/decisions/upgrade-in-place.md has the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import msgspec

from pytriton._protocol import linux, messages
from pytriton._protocol.lanes import stats_page
from pytriton._protocol.lanes.user_series import Families
from pytriton._protocol.messages.metrics import ModelCounts
from pytriton.dispatcher.runtime.logs import TritonLogSettings
from pytriton.dispatcher.scaling.memory_policy import KnownSize

#: Version of the snapshot's format, raised whenever a field changes its meaning. New fields have defaults instead.
VERSION = 1
#: Protocols of running workers and proxies that this version supports.
PROTOCOLS = (messages.PROTOCOL,)
_MAGIC = b"pytriton-hand-over "


class UnusableHandOver(Exception):
    """Raised for a snapshot that this version cannot use. The message says why, and what to do."""


class ChildState(msgspec.Struct, frozen=True):
    """A child process.

    Attributes:
        pid: process id
        output: descriptor of the pipe from its output; -1 if closed
        rest: beginning of an incomplete line of its output
        lines: last complete lines of its output
    """

    pid: int
    output: int
    rest: bytes = b""
    lines: list[str] = []


class WorkerState(msgspec.Struct, frozen=True):
    """A worker that is serving. `stats` is the descriptor of its statistics page."""

    name: str
    child: ChildState
    stats: int
    lane_path: str
    started_at: float
    protocol: int
    not_ready_reason: Optional[str] = None
    #: Reason why it is due to be recycled.
    recycle_due: Optional[messages.WorkerRecycleDue] = None


class SupervisedState(msgspec.Struct, frozen=True):
    """An instance or a standby worker's slot. If it has no worker, the next version starts one."""

    slot: int
    worker: Optional[WorkerState] = None
    restarts: int = 0
    last_exit: Optional[str] = None
    exits: list[messages.WorkerExit] = []


class PoolState(msgspec.Struct, frozen=True):
    """The pool of workers of a registration."""

    supervised: list[SupervisedState]
    #: Name of each proxy -> name of its worker; "" if it has not requested one.
    routes: dict[str, str]
    suspended: bool = False


class RegistrationState(msgspec.Struct, frozen=True):
    """A served model.

    Attributes:
        key: key of the registration, by which its proxies refer to it
        kept: whether the state directory has its payloads; otherwise they are included here
        owner: pid of the client to which the model is bound, if any
        state: "ready", "not_ready" or "unloaded"
        mended: number of loads that had to restart all proxies
        loads: number of loads into tritonserver
        identity: distinguishes it, in the stored model sizes, from other registrations of the same name
    """

    key: str
    spec: messages.ModelSpec
    registered_at: float
    kept: bool
    payloads: list[bytes]
    state: str
    pool: PoolState
    owner: Optional[int] = None
    mended: int = 0
    loads: int = 0
    identity: str = ""


class InstanceCountersState(msgspec.Struct, frozen=True):
    """Totals for an instance's exited workers: their counters, and the number of exits by reason."""

    version: int
    instance: int
    counts: list[Any]
    exits: dict[str, int]
    starts: int
    #: Metrics that callables have defined.
    user_series: Families = {}


class ModelCountersState(msgspec.Struct, frozen=True):
    """Counters of a model."""

    name: str
    instances: list[InstanceCountersState]
    counts: ModelCounts = msgspec.field(default_factory=ModelCounts)
    failed: dict[str, int] = {}
    former: list[Any] = []


class ListenerState(msgspec.Struct, frozen=True):
    """A listening socket. `path` is set for unix sockets only."""

    protocol: str
    descriptor: int
    path: Optional[str] = None


class ServerSnapshot(msgspec.Struct, frozen=True):
    """tritonserver's process, and the sockets that the daemon keeps open for it."""

    child: ChildState
    #: Number of processes started so far, including this one.
    number: int
    admin: ListenerState
    listeners: list[ListenerState]
    #: Protocol of its proxies.
    protocol: int
    #: Descriptor of the table of shared memory regions registered by clients.
    regions: int
    restarts: dict[str, int] = {}
    #: Descriptor on which it reports models that requests wait for; -1 if no request can wait.
    on_demand: int = -1
    #: Triton's log settings, which clients may have changed since its start.
    log_settings: TritonLogSettings = TritonLogSettings()


class OpenAIState(msgspec.Struct, frozen=True):
    """The OpenAI frontend.

    Attributes:
        listener: descriptor of its listening socket
        child: its process
        channel: descriptor of the socket to the process
    """

    listener: int
    child: ChildState
    channel: int


class RepositoryModelState(msgspec.Struct, frozen=True):
    """A model from a model repository.

    Attributes:
        given: directory of the files that a client sent with the load, if any
        key: key of its registration, if workers serve it
        backend: its backend, if tritonserver serves it; "" if unknown
        ends: number of consecutive exits of tritonserver while it loaded this model
    """

    name: str
    state: str
    served_by: str
    reason: str
    versions: list[int]
    steps: list[str]
    loaded_at: float
    config: Optional[dict[str, Any]] = None
    given: Optional[str] = None
    key: Optional[str] = None
    backend: str = ""
    ends: int = 0


#: Name of each model -> its repository, the stamps of its files, and the errors of unreadable directories.
SeenFiles = dict[str, tuple[str, dict[bytes, tuple[int, int]], dict[bytes, str]]]


#: Time of the last OTLP export, and the name, labels, value and start time of each series (times in nanoseconds).
SentSeries = tuple[int, list[tuple[str, tuple[tuple[str, str], ...], float, int]]]


class RepositoriesState(msgspec.Struct, frozen=True):
    """The models of the configured model repositories.

    Attributes:
        python: whether tritonserver's own python backend is needed, and therefore a Python to run it
        seen: files at the last poll (control mode "poll"); paths are bytes
    """

    models: list[RepositoryModelState]
    python: bool = False
    seen: SeenFiles = {}


class HandOver(msgspec.Struct, frozen=True):
    """The snapshot: all state that the next version needs.

    Attributes:
        config: settings in JSON, including the access token
        upgrades: number of upgrades of this process, including this one
        versions: versions of pytriton-daemon that this process has run, oldest first
        protocol: protocol of the version that wrote the snapshot; running workers and proxies may have an older one
        page: layout of the workers' statistics pages
        started_at: start time of the daemon, in seconds since the epoch
        locks: descriptors of the locks of the runtime directory and of the state directory
        control: descriptor of the listening control socket
        control_tcp: TCP endpoint of the control socket; "" if it has none
        helper: pid of the helper of kill_on_death.py, and descriptor of the pipe to it
        regions: prefix of the names of the daemon's shared memory
        serials: numbers of the last worker and of the last registration
        management: descriptors of the management server's listening sockets
        beginnings: start times of the series sent by OTLP; None if none are sent
    """

    config: bytes
    upgrades: int
    versions: list[str]
    protocol: int
    page: str
    started_at: float
    locks: tuple[int, int]
    control: int
    control_tcp: str
    helper: tuple[int, int]
    regions: str
    serials: tuple[int, int]
    server: ServerSnapshot
    registrations: list[RegistrationState]
    counters: list[ModelCountersState]
    repositories: RepositoriesState
    management: list[int] = []
    beginnings: Optional[SentSeries] = None
    openai: Optional[OpenAIState] = None
    #: Events that have not been posted yet, by name of webhook.
    unposted: dict[str, list[messages.Event]] = {}
    #: Serial number of the last event.
    events: int = 0
    #: Measured memory sizes of models, by name.
    sizes: dict[str, KnownSize] = {}
    #: Names of persisted models that are loaded on their first request.
    lazy: list[str] = []


class Remains(msgspec.Struct, frozen=True):
    """The part of a snapshot that a fresh start needs. It may be readable even if the rest is not."""

    config: bytes
    helper: tuple[int, int]
    server: msgspec.Raw = msgspec.Raw()

    @property
    def listeners(self) -> list[ListenerState]:
        """Listening sockets of tritonserver; empty if they cannot be read."""
        try:
            return msgspec.msgpack.decode(self.server, type=_Listeners).listeners
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []


class _Listeners(msgspec.Struct, frozen=True):
    listeners: list[ListenerState]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HandOver)


def encode(state: HandOver) -> bytes:
    """Return the encoded snapshot."""
    return _MAGIC + f"{VERSION}\n".encode() + _encoder.encode(state)


def decode(data: bytes) -> HandOver:
    """Decode and check a snapshot.

    Raises:
        UnusableHandOver: the snapshot is damaged, or has a version or protocols that this version does not support
    """
    head, newline, content = data.partition(b"\n")
    number = head[len(_MAGIC) :]
    if not head.startswith(_MAGIC) or not newline or not number.isdigit():
        raise UnusableHandOver(f"it begins with {head[:40]!r}: it was not written by a daemon")
    if int(number) != VERSION:
        raise UnusableHandOver(
            f"the running daemon writes snapshot format {int(number)}, but this release reads format {VERSION}: "
            "stop the daemon, then start this release (pytriton-daemon restart)"
        )
    try:
        state = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableHandOver(f"it cannot be read: {error}") from error
    if unsupported := "; ".join(_unsupported_processes(state)):
        raise UnusableHandOver(
            f"{unsupported}; this version serves protocol {_protocols_text()}. Upgrade to a version in between first, or reload "
            "all models (pytriton-daemon restart)"
        )
    if state.page != stats_page.LAYOUT:
        raise UnusableHandOver(
            "this version cannot read the statistics pages of the running workers, so their models must be reloaded "
            "(pytriton-daemon restart)"
        )
    return state


def _unsupported_processes(state: HandOver) -> Iterator[str]:
    """Describe each process that speaks a protocol not supported by this version."""
    if state.server.protocol not in PROTOCOLS:
        yield f"the proxies in tritonserver speak protocol {state.server.protocol}"
    models: dict[int, list[str]] = {}
    for registration in state.registrations:
        found = [one.worker for one in registration.pool.supervised if one.worker]
        for protocol in {one.protocol for one in found} - set(PROTOCOLS):
            models.setdefault(protocol, []).append(registration.spec.name)
    for protocol, names in models.items():
        yield f"workers of {', '.join(names)} speak protocol {protocol}"


def remains(data: bytes) -> Remains:
    """Extract what a fresh start needs from a snapshot that is otherwise unusable. Raises `UnusableHandOver`."""
    try:
        return msgspec.msgpack.decode(data.partition(b"\n")[2], type=Remains)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableHandOver(f"it cannot be read: {error}") from error


def _protocols_text() -> str:
    return " and ".join(map(str, PROTOCOLS))


def in_memory(data: bytes) -> int:
    """Write `data` to an anonymous file; return its descriptor."""
    descriptor = linux.memfd_create("hand-over")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def read(descriptor: int) -> bytes:
    """Read a snapshot from a descriptor, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def descriptors(state: HandOver) -> list[int]:
    """Return all descriptors in a snapshot."""
    found = [*state.locks, state.control, state.helper[1], *state.management]
    found += _output_of(state.server.child)
    found += [one.descriptor for one in (state.server.admin, *state.server.listeners)]
    found += [state.server.regions]
    found += [state.server.on_demand] if state.server.on_demand >= 0 else []
    if state.openai is not None:
        found += [state.openai.listener, state.openai.channel, *_output_of(state.openai.child)]
    for registration in state.registrations:
        for one in registration.pool.supervised:
            if one.worker is not None:
                found += [one.worker.stats, *_output_of(one.worker.child)]
    return found


def _output_of(child: ChildState) -> list[int]:
    return [] if child.output < 0 else [child.output]


@contextmanager
def inherited(numbers: Iterable[int]) -> Iterator[None]:
    """Let descriptors survive execve(2) for the duration of this context."""
    numbers = list(numbers)
    try:
        for number in numbers:
            os.set_inheritable(number, True)
        yield
    finally:
        keep_from_children(numbers)


def keep_from_children(numbers: Iterable[int]) -> None:
    """Mark descriptors as close-on-exec, so that children do not inherit them. Raises OSError if one is not open."""
    for number in numbers:
        os.set_inheritable(number, False)
