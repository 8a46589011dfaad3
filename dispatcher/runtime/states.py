"""States of models, instances and tritonserver, and the legal transitions between them.

instance:  STARTING ─▶ LOADING ─▶ READY ─▶ STOPPING ─▶ STOPPED
               ▲           │         │
               └─ BACKOFF ◀┴─────────┘      FAILED after too many exits in a row: STARTING only on request

model:     STARTING ─▶ READY ─▶ STOPPING ─▶ STOPPED
               │         ▲ ▼        ▲        (also for a registration that fails)
               │       NOT_READY ───┤        (unloaded from Triton while no worker can serve)
               │       UNLOADED ────┤        (unloaded by a client of tritonserver, until a client loads it)
               └────────────────────┘

server:    STARTING ─▶ READY ─▶ STOPPING ─▶ STOPPED
               ▲          │
               └──────────┘                  (exited unexpectedly, restarted)
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar


class InstanceState(enum.Enum):
    """States of an instance's worker."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    BACKOFF = "backoff"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ModelState(enum.Enum):
    """States of a registration."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not_ready"
    UNLOADED = "unloaded"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ServerState(enum.Enum):
    """States of tritonserver."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


#: States in which an instance has no worker that can serve.
WITHOUT_WORKER = (
    InstanceState.BACKOFF,
    InstanceState.FAILED,
    InstanceState.STARTING,
    InstanceState.LOADING,
)
_I, _M, _S = InstanceState, ModelState, ServerState
CHANGES: dict[enum.Enum, tuple[enum.Enum, ...]] = {
    _I.STARTING: (_I.LOADING, _I.READY, _I.BACKOFF, _I.FAILED, _I.STOPPING),
    _I.LOADING: (_I.READY, _I.BACKOFF, _I.FAILED, _I.STOPPING),
    _I.READY: (_I.BACKOFF, _I.FAILED, _I.STOPPING),
    _I.BACKOFF: (_I.STARTING, _I.STOPPING),
    _I.FAILED: (_I.STARTING, _I.STOPPING),
    _I.STOPPING: (_I.STOPPED,),
    _I.STOPPED: (),
    _M.STARTING: (_M.READY, _M.STOPPING),
    _M.READY: (_M.NOT_READY, _M.UNLOADED, _M.STOPPING),
    _M.UNLOADED: (_M.READY, _M.STOPPING),
    _M.NOT_READY: (_M.READY, _M.STOPPING),
    _M.STOPPING: (_M.STOPPED,),
    _M.STOPPED: (),
    _S.STARTING: (_S.READY, _S.STOPPING, _S.STOPPED),
    _S.READY: (_S.STARTING, _S.STOPPING, _S.STOPPED),
    _S.STOPPING: (_S.STOPPED,),
    _S.STOPPED: (_S.STARTING,),
}

StateT = TypeVar("StateT", bound=enum.Enum)


class StateMachine(Generic[StateT]):
    """A state that can only change as `CHANGES` permits."""

    def __init__(self, first: StateT) -> None:
        self._state = first

    @property
    def state(self) -> StateT:
        return self._state

    def change(self, new: StateT) -> StateT:
        """Change to the state `new`; return the old state.

        Raises:
            ValueError: the transition is not legal, which is an internal error
        """
        old = self._state
        if new not in CHANGES[old]:
            raise ValueError(
                f"{type(old).__name__}: illegal transition from {old.name} to {new.name}"
            )
        self._state = new
        return old
