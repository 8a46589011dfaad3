"""The history of one instance across its workers: how they exited, and how status describes that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytriton._protocol import messages
from pytriton.dispatcher.runtime.states import InstanceState
from pytriton.dispatcher.runtime.upgrade_snapshot import SupervisedState, WorkerState
from pytriton.dispatcher.workers.backoff import CRASH_LOOP, Streak
from pytriton.dispatcher.workers.process.worker import Worker

#: Number of worker exits that are kept for `status`.
_MAX_EXITS_KEPT = 5


class InstanceRecord:
    """The history of one instance.

    Args:
        index: Number of the instance.
        version: The version it serves, if each version has its own workers.

    Attributes:
        restarts: Number of workers it has had after the first.
        last_exit: How the last worker exited or why it could not be loaded; None if that has not happened.
        streak: The consecutive worker exits.
    """

    def __init__(self, index: int, version: int | None) -> None:
        self.restarts = 0
        self.last_exit: str | None = None
        self.streak = Streak()
        self._index = index
        self._version = version
        self._exits: list[messages.WorkerExit] = []

    def add(self, end: messages.WorkerExit) -> None:
        """Record how a worker ended."""
        self.last_exit = end.how
        self._exits = [*self._exits[1 - _MAX_EXITS_KEPT :], end]

    def adopt(self, state: SupervisedState) -> None:
        """Restore the history from before an upgrade."""
        self.restarts, self.last_exit, self._exits = state.restarts, state.last_exit, state.exits

    def hand_over(self, slot: int, worker: WorkerState | None) -> SupervisedState:
        """Return the state to hand over in an upgrade."""
        return SupervisedState(slot, worker, self.restarts, self.last_exit, self._exits)

    def problem(self, state: InstanceState, *, lacks_worker: bool, proven: bool) -> str | None:
        """Describe a crash loop or a reached restart limit and the next step; return None if there is neither.

        Args:
            state: State of the instance.
            lacks_worker: Whether no worker serves until another one is loaded.
            proven: Whether the current worker has shown that it serves.
        """
        streak, given_up = self.streak, state is InstanceState.FAILED
        # If a worker is ready, earlier failures to load no longer matter, but crashes during batches do.
        ended = streak.fruitless if lacks_worker else streak.fruitless - streak.failures
        if not given_up and (ended < CRASH_LOOP or proven):
            return None
        how = "has reached its restart limit" if given_up else "is in a crash loop"
        if given_up:
            then = "no other one is started (worker_restart_limit) until you scale or replace it"
        elif streak.next_try_at is not None:
            then = f"the next one is started in {max(0.0, streak.next_try_at - time.time()):.1f} s"
        elif lacks_worker:
            then = "the next one is being loaded"
        else:
            then = "the next one is ready"
        times = "1 worker" if streak.fruitless == 1 else f"{streak.fruitless} workers in a row"
        what = f"{times} ended without having answered a batch, the last: {self.last_exit}"
        return f"instance {self._index} {how}: {what}; {then}"

    def info(
        self,
        state: InstanceState,
        worker: Worker | None,
        devices: Sequence[str | None],
        lanes: int,
        *,
        standby: bool,
        proven: bool,
    ) -> messages.InstanceInfo:
        """Return the instance as shown by `status`.

        Args:
            state: State of the instance.
            worker: The current worker; None if none is alive.
            devices: Devices of the model.
            lanes: Number of proxies that the worker serves.
            standby: Whether the instance is a standby worker.
            proven: Whether the worker has shown that it serves.
        """
        done = worker.stats.read() if worker is not None else None
        ready = state is InstanceState.READY
        shown = (
            "not_ready" if ready and worker is not None and worker.not_ready_reason else state.value
        )
        if ready and worker is None:
            shown = InstanceState.BACKOFF.value  # the state that follows once its exit is recorded
        return messages.InstanceInfo(
            index=self._index,
            state=shown,
            pid=worker.pid if worker is not None else None,
            device=devices[self._index % len(devices)] if devices else None,
            lanes=lanes,
            restarts=self.restarts,
            last_exit=self.last_exit,
            standby=standby,
            batches=done.answered if done is not None else 0,
            busy_s=done.busy_s if done is not None else None,
            exits=self._exits,
            version=self._version,
            consecutive_exits=0 if proven else self.streak.fruitless,
            next_try_at=self.streak.next_try_at,
        )
