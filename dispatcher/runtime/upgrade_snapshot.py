"""The document that one version of the daemon leaves for the next one, which the same process becomes by execve(2).

    running daemon ──▶ HandOver, in a file without a name ──▶ execve ──▶ the next version reads it, and adopts

What lives on is the process with its children and with the descriptors that are named here: sockets that it listens
on, pipes of children, pages of memory. All else is written down. docs/decisions/upgrade-in-place.md has the reasons.
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
from pytriton.dispatcher.elastic.known_size import KnownSize

#: Of the document. Raised whenever a field changes its meaning; a new field has a default.
VERSION = 1
#: The protocols of running workers and proxies that this version serves.
PROTOCOLS = (messages.PROTOCOL,)
#: That of workers and proxies in documents that do not say: such versions knew no other.
_UNSAID = 12
_MAGIC = b"pytriton-hand-over "


class UnusableHandOver(Exception):
    """A document that this version cannot take over from; says why, and what to do."""


class ChildState(msgspec.Struct, frozen=True):
    """A child process: its pid, the reading end of its output (-1: it has closed it), and what has been read of it."""

    pid: int
    output: int
    #: The beginning of a line that has not ended yet.
    rest: bytes = b""
    lines: list[str] = []


class WorkerState(msgspec.Struct, frozen=True):
    """A worker that serves. `gauge` is the descriptor of its page."""

    name: str
    child: ChildState
    gauge: int
    lane_path: str
    started_at: float
    unwilling: Optional[str] = None
    #: Why it is to be replaced.
    spent: Optional[str] = None
    protocol: int = _UNSAID


class SupervisedState(msgspec.Struct, frozen=True):
    """An instance or a spare. One without a worker is given one anew."""

    slot: int
    worker: Optional[WorkerState] = None
    restarts: int = 0
    last_exit: Optional[str] = None
    ends: list[messages.WorkerEnd] = []


class PoolState(msgspec.Struct, frozen=True):
    """The workers of a registration, and which of them serves each proxy."""

    supervised: list[SupervisedState]
    #: Proxy -> worker; "": it has asked for none.
    routes: dict[str, str]
    asleep: bool = False


class RegistrationState(msgspec.Struct, frozen=True):
    """A model that is served.

    Attributes:
        key: of the registration, which its proxies name
        kept: its payloads lie in the state directory; else they are here
        owner: the process that it ends with, if it does
        state: "ready", "unready" or "unloaded"
        mended: of the configuration that tritonserver has
        identity: tells it from others of its name, where the sizes of models are kept
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


class InstanceTallyState(msgspec.Struct, frozen=True):
    """The work of an instance's ended workers: their counts, and their ends by reason."""

    version: int
    instance: int
    counts: list[Any]
    ends: dict[str, int]
    starts: int
    #: What callables counted by themselves.
    user_series: Families = {}


class TallyState(msgspec.Struct, frozen=True):
    """The counters of a model."""

    name: str
    instances: list[InstanceTallyState]
    retries: int = 0
    poison: int = 0
    failed: dict[str, int] = {}
    records_logged: int = 0
    records_left_out: int = 0
    wakes: int = 0
    former: list[Any] = []


class ListenerState(msgspec.Struct, frozen=True):
    """A socket that listens; `path` is that of a unix socket."""

    protocol: str
    descriptor: int
    path: Optional[str] = None


class ServerState(msgspec.Struct, frozen=True):
    """tritonserver: its process, and the sockets that the daemon has for it."""

    child: ChildState
    #: The number of its start.
    number: int
    admin: ListenerState
    listeners: list[ListenerState]
    restarts: dict[str, int] = {}
    #: That of the proxies which it has loaded.
    protocol: int = _UNSAID
    #: Where it tells of models that requests wait for; -1: of none.
    asked: int = -1
    #: The table of the shared memory regions that clients have registered.
    regions: int = -1


class OpenAIState(msgspec.Struct, frozen=True):
    """The OpenAI front: its socket, its process, and the descriptor on which that is told what it serves."""

    listener: int
    child: ChildState
    channel: int


class RepositoryModelState(msgspec.Struct, frozen=True):
    """The record of a model of a repository.

    Attributes:
        given: where the files lie that came with its load
        key: of its registration, if workers serve it
        backend: of one that tritonserver serves; "" if not known
        ends: so often in a row tritonserver has ended while it loaded this
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


#: name -> the repository of a model, its files with their stamps, and the folders that could not be read, with reasons.
SeenFiles = dict[str, tuple[str, dict[bytes, tuple[int, int]], dict[bytes, str]]]


#: When series were sent by OTLP last, and of each name, labels, what it had counted, when that began (nanoseconds).
SentSeries = tuple[int, list[tuple[str, tuple[tuple[str, str], ...], float, int]]]


class RepositoriesState(msgspec.Struct, frozen=True):
    """The models of the repositories that the daemon was given.

    Attributes:
        python: tritonserver's own python backend has been given a Python, or is to get one
        seen: with "poll", what it has seen of them; paths are bytes
    """

    models: list[RepositoryModelState]
    python: bool = False
    seen: SeenFiles = {}


class HandOver(msgspec.Struct, frozen=True):
    """All that the next version needs.

    Attributes:
        config: the settings, as JSON; the access token is among them
        upgrades: how often this process has been upgraded, with this time
        versions: of pytriton-daemon, until now, oldest first
        protocol: of that version; workers and tritonserver, which may be older, say their own
        page: what their gauges are like
        started_at: when the daemon began, seconds since the epoch
        locks: descriptors of the locks of the runtime directory and of the state directory
        control: the listening control socket
        control_tcp: where it listens besides, "" if nowhere
        helper: the process of kill_on_death.py, and the pipe to it
        regions: what the names of the daemon's shared memory begin with
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
    server: ServerState
    registrations: list[RegistrationState]
    tallies: list[TallyState]
    operations: list[int] = []
    beginnings: Optional[SentSeries] = None
    openai: Optional[OpenAIState] = None
    #: Events that webhooks have not posted, by webhook.
    unposted: dict[str, list[messages.Event]] = {}
    #: The serial of the last event.
    events: int = 0
    #: What is known of the memory that models take, by name.
    sizes: dict[str, KnownSize] = {}
    #: None: a former version that served none.
    repositories: Optional[RepositoriesState] = None
    #: The kept models that tritonserver gets when somebody asks for them.
    resting: list[str] = []


class Remains(msgspec.Struct, frozen=True):
    """As much of a document as a fresh start needs, whatever the rest is like."""

    config: bytes
    helper: tuple[int, int]
    server: msgspec.Raw = msgspec.Raw()

    @property
    def listeners(self) -> list[ListenerState]:
        """The sockets of tritonserver, if it tells of them."""
        try:
            return msgspec.msgpack.decode(self.server, type=_Listeners).listeners
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []


class _Listeners(msgspec.Struct, frozen=True):
    listeners: list[ListenerState]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HandOver)


def encode(state: HandOver) -> bytes:
    """Return the document."""
    return _MAGIC + f"{VERSION}\n".encode() + _encoder.encode(state)


def decode(data: bytes) -> HandOver:
    """Return what is in a document.

    Raises:
        UnusableHandOver: it is damaged, or what it tells of is of a version that this one cannot serve.
    """
    head, newline, content = data.partition(b"\n")
    number = head[len(_MAGIC) :]
    if not head.startswith(_MAGIC) or not newline or not number.isdigit():
        raise UnusableHandOver(f"it begins with {head[:40]!r}: no daemon has left it")
    if int(number) != VERSION:
        raise UnusableHandOver(
            f"the running daemon hands over in form {int(number)}, and this version takes over from form {VERSION}: "
            "stop the daemon, and start this version (pytriton-daemon restart)"
        )
    try:
        state = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableHandOver(f"it cannot be read: {error}") from error
    if strangers := "; ".join(_strangers(state)):
        raise UnusableHandOver(
            f"{strangers}; this version serves protocol {_known()}. Upgrade to a version in between first, or have "
            "all models loaded anew (pytriton-daemon restart)"
        )
    if state.page != stats_page.LAYOUT:
        raise UnusableHandOver(
            "the running workers count in another way than this version reads: their models have to be loaded anew "
            "(pytriton-daemon restart)"
        )
    return state


def _strangers(state: HandOver) -> Iterator[str]:
    """Say who speaks a protocol that this version does not serve."""
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
    """Return what is left of a document that cannot be taken over from; raises `UnusableHandOver`."""
    try:
        return msgspec.msgpack.decode(data.partition(b"\n")[2], type=Remains)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableHandOver(f"it cannot be read: {error}") from error


def _known() -> str:
    return " and ".join(map(str, PROTOCOLS))


def in_memory(data: bytes) -> int:
    """Return a descriptor of a file without a name that holds a document; it is read from its beginning."""
    descriptor = linux.memfd_create("hand-over")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def read(descriptor: int) -> bytes:
    """Return a document, and close its descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def descriptors(state: HandOver) -> list[int]:
    """Return all descriptors that are handed over."""
    found = [*state.locks, state.control, state.helper[1], *state.operations]
    found += _of_child(state.server.child)
    found += [one.descriptor for one in (state.server.admin, *state.server.listeners)]
    found += [one for one in (state.server.asked, state.server.regions) if one >= 0]
    if state.openai is not None:
        found += [state.openai.listener, state.openai.channel, *_of_child(state.openai.child)]
    for registration in state.registrations:
        for one in registration.pool.supervised:
            if one.worker is not None:
                found += [one.worker.gauge, *_of_child(one.worker.child)]
    return found


def children(state: HandOver) -> list[int]:
    """Return the processes that are handed over."""
    found = [state.server.child.pid, state.helper[0]]
    if state.openai is not None:
        found.append(state.openai.child.pid)
    for registration in state.registrations:
        found += [one.worker.child.pid for one in registration.pool.supervised if one.worker]
    return found


def _of_child(child: ChildState) -> list[int]:
    return [] if child.output < 0 else [child.output]


@contextmanager
def inherited(numbers: Iterable[int]) -> Iterator[None]:
    """Let descriptors outlive execve(2), if it comes in this block."""
    numbers = list(numbers)
    try:
        for number in numbers:
            os.set_inheritable(number, True)
        yield
    finally:
        keep_from_children(numbers)


def keep_from_children(numbers: Iterable[int]) -> None:
    """Have descriptors closed in the processes that this one starts; raises OSError where one is not open."""
    for number in numbers:
        os.set_inheritable(number, False)
