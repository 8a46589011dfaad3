"""The record of one instance over the lives of its workers: their ends, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytriton._protocol import messages
from pytriton.dispatcher.runtime.states import InstanceState
from pytriton.dispatcher.runtime.upgrade_snapshot import SupervisedState, WorkerState
from pytriton.dispatcher.workers.backoff import CRASH_LOOP, Streak
from pytriton.dispatcher.workers.process.worker import Worker

#: Ends that are kept for status.
_ENDS_KEPT = 5


class InstanceRecord:
    """The history of one instance so far.

    Args:
        index: number of the instance
        version: what it serves, where each version has workers of its own

    Attributes:
        restarts: how many workers it has had, besides the first.
        last_exit: how the last one ended, or why it could not be loaded; None: none has.
        streak: the ends in a row.
    """

    def __init__(self, index: int, version: int | None) -> None:
        self.restarts = 0
        self.last_exit: str | None = None
        self.streak = Streak()
        self._index = index
        self._version = version
        self._ends: list[messages.WorkerEnd] = []

    def add(self, end: messages.WorkerEnd) -> None:
        """Note how a worker ended."""
        self.last_exit = end.how
        self._ends = [*self._ends[1 - _ENDS_KEPT :], end]

    def adopt(self, state: SupervisedState) -> None:
        """Go on with what a former version of this process has noted."""
        self.restarts, self.last_exit, self._ends = state.restarts, state.last_exit, state.ends

    def hand_over(self, slot: int, worker: WorkerState | None) -> SupervisedState:
        """Return what the next version of this process goes on with."""
        return SupervisedState(slot, worker, self.restarts, self.last_exit, self._ends)

    def problem(self, state: InstanceState, *, lacks_worker: bool, proven: bool) -> str | None:
        """Say that its workers end one after the other, and what is done about it; None when they do not.

        Args:
            state: of the instance
            lacks_worker: none serves, until another one has been loaded
            proven: the present worker has shown that it serves
        """
        streak, given_up = self.streak, state is InstanceState.FAILED
        # Of one that is ready, those that could not be loaded say nothing any more, but those that batches ended do.
        ended = streak.fruitless if lacks_worker else streak.fruitless - streak.failures
        if not given_up and (ended < CRASH_LOOP or proven):
            return None
        how = "has been given up" if given_up else "is in a crash loop"
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
        spare: bool,
        proven: bool,
    ) -> messages.InstanceInfo:
        """Return what status shows.

        Args:
            state: of the instance
            worker: that it has now; None: there is none that lives
            devices: of the model
            lanes: how many proxies the worker serves
            spare: the instance is a spare
            proven: the worker has shown that it serves
        """
        done = worker.gauge.read() if worker is not None else None
        ready = state is InstanceState.READY
        shown = "unready" if ready and worker is not None and worker.unwilling else state.value
        if ready and worker is None:
            shown = InstanceState.BACKOFF.value  # as it will be when its end has been noted
        return messages.InstanceInfo(
            index=self._index,
            state=shown,
            pid=worker.pid if worker is not None else None,
            device=devices[self._index % len(devices)] if devices else None,
            lanes=lanes,
            restarts=self.restarts,
            last_exit=self.last_exit,
            spare=spare,
            batches=done.answered if done is not None else 0,
            busy_s=done.busy_s if done is not None else None,
            ends=self._ends,
            version=self._version,
            fruitless_ends=0 if proven else self.streak.fruitless,
            next_try_at=self.streak.next_try_at,
        )
