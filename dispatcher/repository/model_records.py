"""Records of repository models: for each model, what serves it, its state, and the reason if it failed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pytriton._protocol import messages
from pytriton.dispatcher.models.registration import Registration
from pytriton.dispatcher.models.registry import Registry
from pytriton.dispatcher.server.tritonserver import TritonServer
from pytriton.dispatcher.upgrade.snapshot import RepositoryModelState

_log = structlog.get_logger(__name__)

TRITONSERVER, WORKERS = "tritonserver", "workers"
#: A model is no longer loaded automatically after this many consecutive exits of tritonserver during its load.
MAX_SERVER_EXITS = 2


@dataclasses.dataclass
class ModelRecord:
    """The record of one repository model."""

    state: str = "unloaded"
    served_by: str = ""
    reason: str = ""
    versions: list[int] = dataclasses.field(default_factory=list)
    registration: Registration | None = None
    config: dict[str, Any] | None = None  #: an override, for tritonserver's next start
    steps: list[str] = dataclasses.field(default_factory=list)  #: steps of an ensemble
    loaded_at: float = 0.0
    loading_since: float = 0.0  #: 0 while it waits to be loaded, or is not being loaded
    uploaded: Path | None = None  #: the repository with the files of its load request
    backend: str = ""  #: backend in tritonserver; "" if unknown, because it is in a cloud
    as_step: bool = False  #: loaded only for an ensemble
    server_exits: int = 0  #: consecutive exits of tritonserver during its load
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def crashes_server(self) -> bool:
        """Whether tritonserver crashes when it loads the model."""
        return self.server_exits >= MAX_SERVER_EXITS

    @property
    def is_pending(self) -> bool:
        """Whether the model is not served yet, but is being loaded or is waiting to be loaded."""
        return self.state == "loading" and not self.served_by

    @property
    def needs_reload(self) -> bool:
        """Whether a restarted tritonserver must load the model, because its predecessor served it or failed to load
        it.
        """
        is_wanted = self.state in ("ready", "failed")
        return self.served_by == TRITONSERVER and is_wanted and not self.crashes_server

    def unload(self) -> None:
        """Reset the record to "unloaded"."""
        self.state, self.served_by, self.registration = "unloaded", "", None
        self.as_step = False
        self.versions, self.steps, self.reason = [], [], ""


class ModelRecords(dict[str, ModelRecord]):
    """Records of all models that have ever been requested or found, by name."""

    def __init__(self, server: TritonServer, registry: Registry) -> None:
        super().__init__()
        self._server = server
        self._registry = registry
        #: tritonserver has exited and not reloaded its models.
        self.server_lost = False

    def of(self, name: str) -> ModelRecord:
        """Return a model's record. Create it if necessary."""
        return self.setdefault(name, ModelRecord())

    def refresh(self, name: str) -> None:
        """Correct a record after a client has replaced or unregistered the model's registration.

        No load or unload of the model may be in progress.
        """
        record = self.get(name)
        if record is not None and record.served_by == WORKERS and not self.serves(name):
            record.unload()

    def reset_failure(self, name: str) -> bool:
        """Reset the record of a removed model if it had failed to load. Return whether it had.

        Otherwise, that failure would keep tritonserver from reporting ready.
        """
        record = self.get(name)
        if record is None or record.state != "failed" or record.served_by or record.lock.locked():
            return False
        record.state, record.reason = "unloaded", ""
        return True

    @property
    def failed(self) -> list[str]:
        """Models that failed to load and have no previous version that is still served."""
        return [name for name, record in self.items() if record.state == "failed"]

    def hand_over(self) -> list[RepositoryModelState]:
        """Return all records, to be handed over in an upgrade."""
        return [self._state_of(name, one) for name, one in self.items()]

    def _state_of(self, name: str, one: ModelRecord) -> RepositoryModelState:
        self.refresh(name)
        return RepositoryModelState(
            name,
            one.state,
            one.served_by,
            one.reason,
            one.versions,
            one.steps,
            one.loaded_at,
            one.config,
            None if one.uploaded is None else str(one.uploaded),
            None if one.registration is None else one.registration.key,
            one.backend,
            one.server_exits,
        )

    def adopt(self, states: Sequence[RepositoryModelState]) -> None:
        """Restore the records that existed before an upgrade. The registrations must exist already."""
        registered = {one.key: one for one in self._registry.served}
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
                uploaded=None if one.given is None else Path(one.given),
                backend=one.backend,
                server_exits=one.ends,
            )

    def serves(self, name: str) -> bool:
        """Return whether a loaded repository model has this name."""
        record = self.get(name)
        if record is None or not record.served_by:
            return False
        return record.served_by == TRITONSERVER or record.registration in list(
            self._registry.served
        )

    def versions_in_tritonserver(self, name: str) -> list[int] | None:
        """Return which versions of a model tritonserver itself serves; [] if unknown, None if it does not serve the
        model.
        """
        record = self.get(name)
        if (
            record is None
            or record.served_by != TRITONSERVER
            or record.state not in ("ready", "loading")
        ):
            return None
        return record.versions

    def state_of(self, name: str) -> str:
        """Return a model's state as shown by the repository commands."""
        record = self.of(name)
        registration = record.registration
        if (
            record.served_by == WORKERS
            and registration is not None
            and registration.in_triton.unloaded
        ):
            return registration.state
        return record.state

    def parts(self, name: str) -> list[str]:
        """Return the steps of a loaded ensemble; [] for other models and for models stored in a bucket."""
        record = self.get(name)
        return [] if record is None else sorted(set(record.steps))

    def infos(self, http_url: str) -> list[messages.ModelInfo]:
        """Return the status of the models that tritonserver itself serves, and of those that are loading or failed
        to load.
        """
        registered = {one.spec.name for one in self._registry.served}
        restoring = self._registry.restoring
        return [
            messages.ModelInfo(
                name=name,
                version=max(record.versions, default=0),
                state=self._state(record),
                instances=[],
                url=f"{http_url}/v2/models/{name}" if http_url else "",
                registered_at=record.loaded_at,
                served_by=record.served_by,
                error=record.reason if record.state == "failed" else None,
                versions=record.versions if len(record.versions) > 1 else [],
                loading_since=record.loading_since,
            )
            for name, record in self.items()
            if record.served_by == TRITONSERVER
            or (record.state == "failed" and not record.served_by and name not in registered)
            or (record.is_pending and name not in registered and not restoring.is_expected(name))
        ]

    def marks(self) -> list[tuple[Callable[[], object], object, Callable[[bool], None], str]]:
        """Return the marks and callbacks with which `IndexWatch` follows repository models; see
        `ModelInTriton.mark`.
        """
        found: list[tuple[Callable[[], object], object, Callable[[bool], None], str]] = []
        for name, record in self.items():
            mark, on_state = (
                partial(self._mark, record),
                partial(self._on_index_state, name, record),
            )
            found.append((mark, mark(), on_state, name))
        return found

    def _mark(self, record: ModelRecord) -> object:
        if record.served_by != TRITONSERVER or record.lock.locked() or self.server_lost:
            return None
        # An ensemble may be unavailable because of a step.
        if not self._are_ready(record.steps):
            return None
        return (record.state, record.loaded_at) if record.state in ("ready", "unloaded") else None

    def _on_index_state(self, name: str, record: ModelRecord, loaded: bool) -> None:
        state = "ready" if loaded else "unloaded"
        if state != record.state:
            record.state = state
            _log.warning(
                f"a tritonserver client {'' if loaded else 'un'}loaded a model", model=name
            )

    def _state(self, record: ModelRecord) -> str:
        """Return the state of a model in tritonserver. An ensemble is ready only if its steps are."""
        if record.state != "ready":
            return record.state
        up = self._server.ready and not self.server_lost and self._are_ready(record.steps)
        return "ready" if up else "not_ready"

    def _are_ready(self, steps: Iterable[str]) -> bool:
        """Return whether all steps of an ensemble are ready, in workers or in tritonserver."""
        return all(map(self._is_ready, steps))

    def _is_ready(self, name: str) -> bool:
        registration = self._registry.served.get(name)
        if registration is not None and registration.ready:
            return True
        record = self.get(name)
        return record is not None and record.served_by == TRITONSERVER
