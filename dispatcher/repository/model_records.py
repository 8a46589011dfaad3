"""The daemon's records of repository models: who serves each, its state, and why it failed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol import messages
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.runtime.upgrade_snapshot import RepositoryModelState
from pytriton.dispatcher.server.tritonserver import TritonServer

_log = structlog.get_logger(__name__)

TRITONSERVER, WORKERS = "tritonserver", "workers"
#: A model that tritonserver was loading each time when it ended so often in a row is not loaded again by itself.
ENDS_TRIED = 2


@dataclasses.dataclass
class ModelRecord:
    """The record of one repository model."""

    state: str = "unloaded"
    served_by: str = ""
    reason: str = ""
    versions: list[int] = dataclasses.field(default_factory=list)
    registration: Registration | None = None
    config: dict[str, Any] | None = None  #: an override, for tritonserver's next start
    steps: list[str] = dataclasses.field(default_factory=list)  #: of an ensemble
    loaded_at: float = 0.0
    loading_since: float = 0.0  #: 0: it waits for its turn, or is not being loaded
    given: Path | None = None  #: the repository of files that came with the request to load it
    backend: str = ""  #: of one that tritonserver serves; "" where only its cloud tells
    as_step: bool = False  #: it was loaded for an ensemble alone
    ends: int = 0  #: so often in a row tritonserver has ended while it loaded this
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def ends_server(self) -> bool:
        """Whether tritonserver does not survive its load."""
        return self.ends >= ENDS_TRIED

    @property
    def is_coming(self) -> bool:
        """Whether nobody serves it yet, and it is being loaded or waits for its turn."""
        return self.state == "loading" and not self.served_by

    @property
    def is_missing(self) -> bool:
        """Whether a tritonserver that was just started is to load it: it has served it, or could not once."""
        is_wanted = self.state in ("ready", "failed")
        return self.served_by == TRITONSERVER and is_wanted and not self.ends_server

    def unload(self) -> None:
        """Say that nobody serves it, and nothing of what was."""
        self.state, self.served_by, self.registration = "unloaded", "", None
        self.as_step = False
        self.versions, self.steps, self.reason = [], [], ""


class ModelRecords(dict[str, ModelRecord]):
    """The records by model name, for every model that was ever asked for or found."""

    def __init__(self, server: TritonServer, registry: Registry) -> None:
        super().__init__()
        self._server = server
        self._registry = registry
        #: tritonserver has ended, and has not loaded again what it served.
        self.server_lost = False

    def of(self, name: str) -> ModelRecord:
        """Return a model's record; make it if there is none."""
        return self.setdefault(name, ModelRecord())

    def mend(self, name: str) -> None:
        """Have a record say that workers do not serve the model, if a client has its name or has unregistered it.

        Nobody loads or unloads the model now but who calls this.
        """
        known = self.get(name)
        if known is not None and known.served_by == WORKERS and not self.serves(name):
            known.unload()

    def forget_failure(self, name: str) -> bool:
        """Have a model that could not be loaded, and is gone, count as unloaded; return whether it was one.

        Else its failure would keep tritonserver from being ready for good.
        """
        known = self.get(name)
        if known is None or known.state != "failed" or known.served_by or known.lock.locked():
            return False
        known.state, known.reason = "unloaded", ""
        return True

    @property
    def failed(self) -> list[str]:
        """The models that could not be loaded, and are not served by what was there before."""
        return [name for name, known in self.items() if known.state == "failed"]

    def hand_over(self) -> list[RepositoryModelState]:
        """Return all of them, for the next version of the daemon."""
        return [self._state_of(name, one) for name, one in self.items()]

    def _state_of(self, name: str, one: ModelRecord) -> RepositoryModelState:
        self.mend(name)
        return RepositoryModelState(
            name,
            one.state,
            one.served_by,
            one.reason,
            one.versions,
            one.steps,
            one.loaded_at,
            one.config,
            None if one.given is None else str(one.given),
            None if one.registration is None else one.registration.key,
            one.backend,
            one.ends,
        )

    def adopt(self, states: Sequence[RepositoryModelState]) -> None:
        """Go on with what a former version has handed over; the registrations are there already."""
        registered = {one.key: one for one in self._registry}
        for one in states:
            self[one.name] = ModelRecord(
                state=one.state,
                served_by=one.served_by,
                reason=one.reason,
                versions=one.versions,
                registration=registered.get(one.key or ""),
                config=one.config,
                steps=one.steps,
                loaded_at=one.loaded_at,
                given=None if one.given is None else Path(one.given),
                backend=one.backend,
                ends=one.ends,
            )

    def serves(self, name: str) -> bool:
        """Whether a name is now that of a model loaded from a repository."""
        known = self.get(name)
        if known is None or not known.served_by:
            return False
        return known.served_by == TRITONSERVER or known.registration in list(self._registry)

    def tritonservers_versions(self, name: str) -> list[int] | None:
        """Return which versions of a model tritonserver itself serves, none if not known; None: it does not."""
        known = self.get(name)
        if (
            known is None
            or known.served_by != TRITONSERVER
            or known.state not in ("ready", "loading")
        ):
            return None
        return known.versions

    def state_of(self, name: str) -> str:
        """Return how a model is, as the repository's commands show it."""
        known = self.of(name)
        registration = known.registration
        if (
            known.served_by == WORKERS
            and registration is not None
            and registration.in_triton.unloaded
        ):
            return registration.state
        return known.state

    def parts(self, name: str) -> list[str]:
        """Return the models that a loaded ensemble consists of; none if it is none, or lies in a cloud."""
        known = self.get(name)
        return [] if known is None else sorted(set(known.steps))

    def infos(self, http_url: str) -> list[messages.ModelInfo]:
        """Return what status shows of models that tritonserver serves itself, and of those that nobody serves (yet)."""
        registered = {one.spec.name for one in self._registry}
        kept = self._registry.restoring
        return [
            messages.ModelInfo(
                name=name,
                version=max(known.versions, default=0),
                state=self._state(known),
                instances=[],
                url=f"{http_url}/v2/models/{name}" if http_url else "",
                registered_at=known.loaded_at,
                served_by=known.served_by,
                error=known.reason if known.state == "failed" else None,
                versions=known.versions if len(known.versions) > 1 else [],
                loading_since=known.loading_since,
            )
            for name, known in self.items()
            if known.served_by == TRITONSERVER
            or (known.state == "failed" and not known.served_by and name not in registered)
            or (known.is_coming and name not in registered and not kept.comes(name))
        ]

    def marks(self) -> list[tuple[Callable[[], object], object, Callable[[bool], None], str]]:
        """Return for `IndexWatch` each model that tritonserver serves itself; see `ModelInTriton.mark`."""
        found: list[tuple[Callable[[], object], object, Callable[[bool], None], str]] = []
        for name, known in self.items():
            mark, tell = partial(self._mark, known), partial(self._seen, name, known)
            found.append((mark, mark(), tell, name))
        return found

    def _mark(self, known: ModelRecord) -> object:
        if known.served_by != TRITONSERVER or known.lock.locked() or self.server_lost:
            return None
        if not self._ready().issuperset(known.steps):  # an ensemble is out because a step of it is
            return None
        return (known.state, known.loaded_at) if known.state in ("ready", "unloaded") else None

    def _seen(self, name: str, known: ModelRecord, loaded: bool) -> None:
        state = "ready" if loaded else "unloaded"
        if state != known.state:
            known.state = state
            _log.warning(
                f"a client of tritonserver has {'' if loaded else 'un'}loaded a model", model=name
            )

    def _state(self, known: ModelRecord) -> str:
        """Return the state of a model that tritonserver serves; an ensemble is as ready as its steps are."""
        if known.state != "ready":
            return known.state
        up = self._server.ready and not self.server_lost and self._ready().issuperset(known.steps)
        return "ready" if up else "unready"

    def _ready(self) -> set[str]:
        """Return the models that an ensemble may have as its steps."""
        ready = {one.spec.name for one in self._registry if one.ready}
        return ready | {name for name, one in self.items() if one.served_by == TRITONSERVER}
