"""The snapshot that one version of the daemon leaves for the next one, which the same process becomes by execve(2).

    running daemon ──▶ HandOver, in an anonymous file ──▶ execve ──▶ the next version reads it, and adopts the state

The process survives with its children and the descriptors that are listed here: listening sockets, pipes of
children, pages of memory. Everything else is serialized. docs/decisions/upgrade-in-place.md has the reasons.
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
from pytriton.dispatcher.runtime.logs import TritonLogSettings
from pytriton.dispatcher.scaling.memory_policy import KnownSize

#: Version of the document. Raised whenever a field changes its meaning; new fields have defaults.
VERSION = 1
#: The protocols of running workers and proxies that this version supports.
PROTOCOLS = (messages.PROTOCOL,)
_MAGIC = b"pytriton-hand-over "


class UnusableHandOver(Exception):
    """A document that this version cannot take over from. The text says why, and what to do."""


class ChildState(msgspec.Struct, frozen=True):
    """A child process: its pid, the read end of its output (-1 if closed), and the beginning of an incomplete line."""

    pid: int
    output: int
    #: The beginning of an incomplete line.
    rest: bytes = b""
    lines: list[str] = []


class WorkerState(msgspec.Struct, frozen=True):
    """A worker that serves. `stats` is the descriptor of its statistics page."""

    name: str
    child: ChildState
    stats: int
    lane_path: str
    started_at: float
    protocol: int
    not_ready_reason: Optional[str] = None
    #: Why it must be recycled.
    recycle_due: Optional[str] = None


class SupervisedState(msgspec.Struct, frozen=True):
    """An instance or a standby. If it has no worker, a new one is started."""

    slot: int
    worker: Optional[WorkerState] = None
    restarts: int = 0
    last_exit: Optional[str] = None
    exits: list[messages.WorkerExit] = []


class PoolState(msgspec.Struct, frozen=True):
    """The workers of a registration, and the worker that serves each proxy."""

    supervised: list[SupervisedState]
    #: Proxy -> worker; "" if it has not requested one.
    routes: dict[str, str]
    suspended: bool = False


class RegistrationState(msgspec.Struct, frozen=True):
    """A served model.

    Attributes:
        key: of the registration; its proxies refer to it
        kept: whether its payloads are in the state directory; otherwise they are included here
        owner: the process that it is bound to, if any
        state: "ready", "not_ready" or "unloaded"
        mended: number of loads that had to restart all proxies, including the one that tritonserver has
        identity: distinguishes it from others of its name in the stored model sizes
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
    """Totals of an instance's exited workers: their counters, and their exits by reason."""

    version: int
    instance: int
    counts: list[Any]
    exits: dict[str, int]
    starts: int
    #: Metrics defined by callables.
    user_series: Families = {}


class ModelCountersState(msgspec.Struct, frozen=True):
    """The counters of a model."""

    name: str
    instances: list[InstanceCountersState]
    retries: int = 0
    poison: int = 0
    failed: dict[str, int] = {}
    records_logged: int = 0
    records_left_out: int = 0
    resumes: int = 0
    former: list[Any] = []


class ListenerState(msgspec.Struct, frozen=True):
    """A listening socket; `path` is set for a unix socket."""

    protocol: str
    descriptor: int
    path: Optional[str] = None


class ServerSnapshot(msgspec.Struct, frozen=True):
    """tritonserver: its process, and the sockets that the daemon holds for it."""

    child: ChildState
    #: The number of its start.
    number: int
    admin: ListenerState
    listeners: list[ListenerState]
    #: The protocol of its proxies.
    protocol: int
    #: Descriptor of the table of shared memory regions registered by clients.
    regions: int
    restarts: dict[str, int] = {}
    #: Descriptor on which it reports models that requests wait for; -1 if no request can wait.
    on_demand: int = -1
    #: Triton's log settings, which clients may have changed since its start.
    log_settings: TritonLogSettings = TritonLogSettings()


class OpenAIState(msgspec.Struct, frozen=True):
    """The OpenAI frontend: its socket, its process, and the descriptor over which it is configured."""

    listener: int
    child: ChildState
    channel: int


class RepositoryModelState(msgspec.Struct, frozen=True):
    """The record of a model from a repository.

    Attributes:
        given: the directory of files that were sent with its load
        key: of its registration, if workers serve it
        backend: of one that tritonserver serves; "" if unknown
        ends: consecutive exits of tritonserver while it loaded this model
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


#: name -> the repository of a model, its files with their stamps, and unreadable folders with reasons.
SeenFiles = dict[str, tuple[str, dict[bytes, tuple[int, int]], dict[bytes, str]]]


#: When series were last sent by OTLP; and for each name and labels, the value, and the start time (nanoseconds).
SentSeries = tuple[int, list[tuple[str, tuple[tuple[str, str], ...], float, int]]]


class RepositoriesState(msgspec.Struct, frozen=True):
    """The models of the configured repositories.

    Attributes:
        python: whether a Python has been, or will be, provided for tritonserver's own python backend
        seen: with "poll", the last observed state of the files; paths are bytes
    """

    models: list[RepositoryModelState]
    python: bool = False
    seen: SeenFiles = {}


class HandOver(msgspec.Struct, frozen=True):
    """All state that the next version needs.

    Attributes:
        config: the settings, as JSON, including the access token
        upgrades: number of upgrades of this process, including this one
        versions: of pytriton-daemon so far, oldest first
        protocol: of the version that wrote this; workers and tritonserver may be older and have their own
        page: the layout of their statistics pages
        started_at: when the daemon started, in seconds since the epoch
        locks: descriptors of the locks of the runtime directory and of the state directory
        control: the listening control socket
        control_tcp: its TCP endpoint, "" if there is none
        helper: the pid of the kill_on_death.py helper, and the pipe to it
        regions: prefix of the names of the daemon's shared memory
        serials: the number of the last worker, and of the last registration
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
    #: Events not posted yet, by webhook.
    unposted: dict[str, list[messages.Event]] = {}
    #: The serial of the last event.
    events: int = 0
    #: Known memory sizes of models, by name.
    sizes: dict[str, KnownSize] = {}
    #: Lazy models: persisted, and loaded by tritonserver on first request.
    lazy: list[str] = []


class Remains(msgspec.Struct, frozen=True):
    """The part of a document that a fresh start needs, readable even if the rest is not."""

    config: bytes
    helper: tuple[int, int]
    server: msgspec.Raw = msgspec.Raw()

    @property
    def listeners(self) -> list[ListenerState]:
        """The sockets of tritonserver, if the document contains them."""
        try:
            return msgspec.msgpack.decode(self.server, type=_Listeners).listeners
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []


class _Listeners(msgspec.Struct, frozen=True):
    listeners: list[ListenerState]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HandOver)


def encode(state: HandOver) -> bytes:
    """Return the encoded document."""
    return _MAGIC + f"{VERSION}\n".encode() + _encoder.encode(state)


def decode(data: bytes) -> HandOver:
    """Decode and check a document.

    Raises:
        UnusableHandOver: it is damaged, or has versions or protocols that this version does not support.
    """
    head, newline, content = data.partition(b"\n")
    number = head[len(_MAGIC) :]
    if not head.startswith(_MAGIC) or not newline or not number.isdigit():
        raise UnusableHandOver(f"it begins with {head[:40]!r}: it was not written by a daemon")
    if int(number) != VERSION:
        raise UnusableHandOver(
            f"the running daemon writes snapshots of version {int(number)}, and this version reads version {VERSION}: "
            "stop the daemon, and start this version (pytriton-daemon restart)"
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
            "the statistics pages of the running workers have a layout that this version cannot read: their models must be reloaded "
            "(pytriton-daemon restart)"
        )
    return state


def _unsupported_processes(state: HandOver) -> Iterator[str]:
    """Yield a description of each process whose protocol this version does not support."""
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
    """Return the usable part of an unusable document. Raises `UnusableHandOver`."""
    try:
        return msgspec.msgpack.decode(data.partition(b"\n")[2], type=Remains)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableHandOver(f"it cannot be read: {error}") from error


def _protocols_text() -> str:
    return " and ".join(map(str, PROTOCOLS))


def in_memory(data: bytes) -> int:
    """Return a descriptor of an anonymous file that contains the document, positioned at its beginning."""
    descriptor = linux.memfd_create("hand-over")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def read(descriptor: int) -> bytes:
    """Read a document, and close its descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def descriptors(state: HandOver) -> list[int]:
    """Return all descriptors that are handed over."""
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


def children(state: HandOver) -> list[int]:
    """Return the pids of all processes that are handed over."""
    found = [state.server.child.pid, state.helper[0]]
    if state.openai is not None:
        found.append(state.openai.child.pid)
    for registration in state.registrations:
        found += [one.worker.child.pid for one in registration.pool.supervised if one.worker]
    return found


def _output_of(child: ChildState) -> list[int]:
    return [] if child.output < 0 else [child.output]


@contextmanager
def inherited(numbers: Iterable[int]) -> Iterator[None]:
    """Let descriptors survive execve(2) in this block."""
    numbers = list(numbers)
    try:
        for number in numbers:
            os.set_inheritable(number, True)
        yield
    finally:
        keep_from_children(numbers)


def keep_from_children(numbers: Iterable[int]) -> None:
    """Close descriptors in processes that this one starts. Raises OSError if one is not open."""
    for number in numbers:
        os.set_inheritable(number, False)
