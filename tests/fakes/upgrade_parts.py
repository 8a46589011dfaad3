"""The parts of a daemon that an upgrade uses, without a process or a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.workers.fork_servers import ForkServers
from pytriton.dispatcher.workers.prestarted import PrestartedWorkers

NOBODY = cast(KillOnDeath, None)  # nothing is started


class Parts(SimpleNamespace):
    """The parts of a daemon whose upgrade nothing prevents.

    Attributes:
        reported: names of the events, with their reasons.
        held: whether changes wait.
    """

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []
        self.held = False
        self.busy: list[str] = []
        super().__init__(
            status=SimpleNamespace(phase="ready"),
            shutdown=SimpleNamespace(requested=SimpleNamespace(is_set=lambda: False)),
            client_bound_models=SimpleNamespace(ending=False),
            control=SimpleNamespace(changing=0, hold=self._hold, release=self._release),
            server=SimpleNamespace(can_hand_over=True, is_quiescent=True, has_single_process=False),
            openai=SimpleNamespace(is_quiescent=True),
            repository_models=SimpleNamespace(
                is_quiescent=True, watch=SimpleNamespace(hold=lambda: None, release=lambda: None)
            ),
            registry=Models([], self.busy),
            workers=SimpleNamespace(forks=ForkServers(1, lambda python: [], NOBODY), unreported=0),
            events=SimpleNamespace(emit=self._emit),
            is_private=False,
        )

    def _hold(self) -> None:
        self.held = True

    def _release(self) -> None:
        self.held = False

    def _emit(self, kind: kinds.EventKind, reason: str = "", **_: object) -> None:
        self.reported.append((kind.name, reason))


class Models(list[Any]):
    """Registrations, and the changes in progress."""

    def __init__(self, models: list[Any], busy: list[str]) -> None:
        super().__init__(models)
        self.served = self
        self.busy = busy
        self.prestarted = PrestartedWorkers(3)
        self.background_changes = SimpleNamespace(hold=self._hold, release=self._release)
        self.held = False

    def why_not_quiescent(self) -> str:
        return self.busy[0] if self.busy else ""

    def _hold(self) -> None:
        self.held = True

    async def _release(self) -> None:
        self.held = False
