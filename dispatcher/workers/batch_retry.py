"""BatchRetry on lost and overdue batches: the dispatcher tells the proxy to try again, fail, or wait.

    lost or hung, the first time ──▶ its requests are tried again, each by itself     (on_crash="retry")
    lost or hung by itself       ──▶ that request fails, as it is what ends workers
    several in a row of a batch  ──▶ all that is left of it fails: the model ends, whatever it is given

A batch that its worker had not taken was never begun: its proxy sends it elsewhere without asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

from pytriton._protocol import messages
from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.request_names import clean
from pytriton._protocol.lanes.stats_page import Reading
from pytriton._protocol.messages import Verdict
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.model_counters import Tally
from pytriton.dispatcher.workers.process.worker import Worker

#: How long a broken lane may run ahead of the news that its worker ended.
_END_NEWS_S = 2.0
#: How long an answer may take to its proxy; and a worker from taking a batch to saying that it has begun it.
_ANSWER_S = 2.0
_BEGINS_S = 0.5
#: A request that has ended so many workers, the last one by itself, is not given to another one.
_POISON = 2
#: The same of one that overlapped with others when these ended: each of them may have done it.
_POISON_BESIDE = 4
#: So many requests of one batch, each by itself and one after the other, that ended a worker: it is not they. Each
#: costs a worker, and those that hang as much time as a batch may take.
_MOST_CRASHES = 8
_MOST_HANGS = 3


class BatchRetry:
    """Decides for one registration; `workers` are those that it has and had, by name.

    Attributes:
        spec: the declaration.
        given_up_for: why nothing is tried again any more; None while it is.
        stopping: the workers are being ended.
    """

    def __init__(
        self,
        spec: messages.ModelSpec,
        workers: Mapping[str, Worker],
        tally: Tally | None = None,
        events: Events = LOG_ONLY,
    ) -> None:
        self.given_up_for: str | None = None
        self.stopping = False
        self.spec = spec
        self._workers = workers
        self._tally = tally or Tally()
        self._events = events
        #: Workers that were idle while a batch waited for them, and how many batches they had begun.
        self._idle_at: dict[str, int] = {}
        self._aside: set[asyncio.Task[None]] = set()

    def forget(self, worker: str) -> None:
        """Forget a worker: no proxy will ask about it any more."""
        self._idle_at.pop(worker, None)

    async def on_loss(self, lost: messages.LaneLost) -> Verdict:
        """Decide about a batch whose worker was lost after it had taken it."""
        if self.given_up_for is not None:
            return Verdict("fail", self.given_up_for, whole=True)
        name = self.spec.name
        is_poison = self._is_poison(lost)
        if self._may_retry and not lost.final and not is_poison:
            self._tell(kinds.RETRIED, lost.worker, numbers={"requests": lost.requests})
            self._tally.retries += lost.requests
            return Verdict("retry")
        text = f"model {name}: {await self._explain_loss(lost.worker)} while it ran this batch"
        if is_poison:
            self._tally.poison += 1
            text += (
                f"; so did {lost.losses - 1} more before, so this batch is taken to be what ends them and is "
                "not tried again"
            )
        worker = self._workers.get(lost.worker)
        text += worker.log_hint if worker is not None else ""
        verdict = self._failed(lost, text, _MOST_CRASHES)
        self._count_failed("lost", lost, verdict)
        return verdict

    def _is_poison(self, lost: messages.LaneLost) -> bool:
        """Whether a batch is taken to be what ends workers: it did so twice, or more often beside others."""
        worker = self._workers.get(lost.worker)
        reading = None if worker is None else worker.reading()
        beside = reading is not None and reading.overlaps and reading.begun - reading.answered > 1
        return lost.losses >= (_POISON_BESIDE if beside else _POISON)

    def on_overdue(self, overdue: messages.BatchOverdue) -> Verdict:
        """Decide about a batch that was not answered in time: whether its worker is busy, or hangs."""
        name, taken = overdue.worker, overdue.taken
        limit_s = self.spec.execution_timeout_s
        worker = self._workers.get(name)
        if limit_s is None or worker is None or not worker.alive:
            return Verdict("wait", wait_s=_END_NEWS_S)  # the end of the lane is on its way
        gauge = worker.gauge.read()
        busy_s = gauge.busy_s
        if taken and gauge.overlaps and overdue.taken_ms < _ANSWER_S * 1000:
            # The worker itself has ended the batch by now, unless its event loop is blocked.
            return Verdict("wait", wait_s=_ANSWER_S)
        if taken and self._has_answered(gauge, overdue.taken_ms / 1000):
            what = "it took a batch and is done with it, but its answer never came"
            return self._hangs(worker, overdue, what)
        if busy_s is not None and busy_s < limit_s:  # with the batch of another proxy
            return Verdict("wait", wait_s=limit_s - busy_s)
        if busy_s is None and taken:  # it has just answered, or believes that it has
            return Verdict("wait", wait_s=min(limit_s, _ANSWER_S))
        if busy_s is None and self._idle_at.get(name) != gauge.begun:
            # It may have taken and answered the batch since the proxy looked: is it still as idle next time?
            self._idle_at[name] = gauge.begun
            return Verdict("wait", wait_s=limit_s)
        what = f"a batch was still running after {limit_s:g} s (execution_timeout_s)"
        if busy_s is None:
            what = f"it did not take a batch for {limit_s:g} s (execution_timeout_s)"
        return self._hangs(worker, overdue, what)

    def _has_answered(self, gauge: Reading, taken_s: float) -> bool:
        """Whether a worker is done with a batch that it had taken so long ago: no answer is on its way any more."""
        if taken_s == 0:  # it was not known until now: the answer may be
            return False
        if gauge.begun == gauge.answered:
            return True
        streams = self.spec.python_model is not None and self.spec.python_model.streams
        policy = self.spec.config.get("model_transaction_policy", {})
        if streams or policy.get("decoupled") or gauge.overlaps:
            return False
        return (
            gauge.busy_s is not None and gauge.busy_s < taken_s - _BEGINS_S
        )  # it is with a later one

    def _hangs(self, worker: Worker, overdue: messages.BatchOverdue, what: str) -> Verdict:
        name, taken = overdue.worker, overdue.taken
        limit_s = self.spec.execution_timeout_s or 0.0
        self._tell(
            kinds.HANG,
            name,
            with_id(what, clean(overdue.request_id)),
            numbers={"pid": worker.pid, "limit_s": limit_s},
        )
        self._do_aside(worker.end_hung(what))
        if not taken:
            return Verdict("retry")
        if (
            self._may_retry
            and not overdue.final
            and overdue.losses == 0
            and self._had_company(overdue, worker)
        ):
            self._tally.retries += overdue.requests
            return Verdict("retry")
        text = (
            f"model {self.spec.name}: {what} in worker {name} (pid {worker.pid}), which is being "
            f"replaced; what it was doing is in its log: pytriton-daemon logs {self.spec.name}"
        )
        verdict = self._failed(overdue, text, _MOST_HANGS)
        self._tally.poison += overdue.losses > 0
        self._count_failed("hung", overdue, verdict)
        return verdict

    def _count_failed(
        self, how: str, asked: messages.LaneLost | messages.BatchOverdue, verdict: Verdict
    ) -> None:
        """Count the requests that fail: of a batch whose requests are tried each by itself, one, unless all do."""
        apart = asked.in_row > 0 and not verdict.whole
        self._tally.failed[how] += 1 if apart else asked.requests

    @property
    def _may_retry(self) -> bool:
        return self.spec.on_crash == "retry" and not self.stopping and self.given_up_for is None

    def _had_company(self, overdue: messages.BatchOverdue, worker: Worker) -> bool:
        """Whether another request, in its batch, merged with it or beside it, may be the one that hangs."""
        if worker.gauge.read().overlaps:
            return True
        merges = self.spec.lanes > 1 and self.spec.config.get("max_batch_size", 0) > 1
        return overdue.requests > 1 or merges

    def _failed(
        self, asked: messages.LaneLost | messages.BatchOverdue, text: str, most: int
    ) -> Verdict:
        """Fail what was asked about. The event names the request, as the proxy's error does."""
        in_row = asked.in_row
        whole = in_row >= most
        if whole:
            text += (
                f"; {in_row} requests of one batch, tried each by itself, went like this one after the other, so "
                "the model is taken to be broken and the rest of the batch is not tried"
            )
        reason = with_id(text, clean(asked.request_id))
        if asked.losses >= _POISON:
            self._tell(kinds.POISON, asked.worker, reason, numbers={"losses": asked.losses})
        else:
            self._tell(kinds.BATCH_FAILED, asked.worker, reason, numbers={"in_row": in_row})
        return Verdict("fail", text, whole=whole)

    def _tell(
        self, kind: kinds.Kind, worker: str, reason: str = "", *, numbers: Mapping[str, float]
    ) -> None:
        known = self._workers.get(worker)
        instance = known.instance if known is not None else None
        self._events.tell(kind, instance=instance, worker=worker, reason=reason, numbers=numbers)

    async def _explain_loss(self, name: str) -> str:
        """Say how a worker ended whose lane broke in the middle of a batch."""
        worker = self._workers.get(name)
        if worker is None:
            return "the worker of this batch ended"
        await asyncio.wait([worker.exited], timeout=_END_NEWS_S)
        if worker.exited.done():
            return worker.describe_end()
        return f"worker {name} closed its lane"

    def _do_aside(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
