"""Retry policy: decides whether a proxy retries a lost or overdue batch, fails it, or keeps waiting for it.

    lost or hung for the first time      ──▶ retry its requests one by one     (on_crash="retry")
    a single request lost or hung again  ──▶ fail the request: it crashes workers
    several consecutive requests         ──▶ fail the rest of the batch: the model is broken

The proxy sends a batch that its worker had not read yet to another worker without asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pytriton._protocol import messages
from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.request_records import clean
from pytriton._protocol.lanes.stats_page import StatsReading
from pytriton._protocol.messages import Verdict
from pytriton.dispatcher.runtime.tasks import run_in_background
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import LOG_ONLY, Events
from pytriton.dispatcher.workers.model_counters import ModelCounters
from pytriton.dispatcher.workers.worker import STATS_POLL_INTERVAL_S, Worker

#: Maximum delay between a broken lane and the notification that its worker exited.
_EXIT_NOTICE_S = 2.0
#: The same for a worker that is known to be exiting. Freeing memory and devices, and `finalize`, may take long.
_SLOW_EXIT_S = 10.0
#: Maximum time for a response to reach its proxy.
_RESPONSE_S = 2.0
#: Maximum time from reading a batch to recording its start in the statistics page.
_BATCH_START_S = 0.5
#: Number of workers lost with a request after which it is not retried. It was alone in the last one.
_POISON_LOSSES = 2
#: The same for a request that overlapped others: any of them may have crashed the workers.
_POISON_LOSSES_OVERLAPPED = 4
#: A model is considered broken when this many requests of one batch, retried one by one, crash or hang in a row.
#: Each attempt costs a worker; each hang also costs the time that a batch may take.
_MAX_CRASHES = 8
_MAX_HANGS = 3


class BatchRetry:
    """The retry policy of one registration.

    Args:
        spec: The registration's declaration.
        workers: Current workers and the last exited ones, by name.
        counters: Counts retried and failed requests.
        events: Receives the decisions.

    Attributes:
        spec: The registration's declaration.
        disabled_reason: Why batches are no longer retried; None while they are.
        stopping: Whether the workers are being stopped.
    """

    def __init__(
        self,
        spec: messages.ModelSpec,
        workers: Mapping[str, Worker],
        counters: ModelCounters | None = None,
        events: Events = LOG_ONLY,
    ) -> None:
        self.disabled_reason: str | None = None
        self.stopping = False
        self.spec = spec
        self._workers = workers
        self._counters = counters or ModelCounters()
        self._events = events
        #: Number of batches started by each worker that was idle when an overdue batch was reported.
        self._idle_at: dict[str, int] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()

    def forget(self, worker: str) -> None:
        """Discard all records of a worker that has exited."""
        self._idle_at.pop(worker, None)

    async def on_loss(self, lost: messages.LaneLost) -> Verdict:
        """Decide whether to retry or fail a batch whose worker was lost after reading it."""
        if self.disabled_reason is not None:
            return Verdict("fail", self.disabled_reason, fails_rest=True)
        name = self.spec.name
        is_poison = self._is_poison(lost)
        if self._may_retry and not lost.final and not is_poison:
            self._emit(kinds.RETRIED, lost.worker, numbers={"requests": lost.requests})
            self._counters.counts.retries += lost.requests
            return Verdict("retry")
        text = f"model {name}: {await self._explain_loss(lost.worker)} while it ran this batch"
        if is_poison:
            self._counters.counts.poison += 1
            earlier = lost.lost_workers - 1
            workers = "1 worker" if earlier == 1 else f"{earlier} workers"
            text += f"; {workers} crashed on the same request before, so it is not retried"
        worker = self._workers.get(lost.worker)
        text += worker.log_hint if worker is not None else ""
        verdict = self._fail(lost, text, _MAX_CRASHES)
        self._count_failed("lost", lost, verdict)
        return verdict

    def _is_poison(self, lost: messages.LaneLost) -> bool:
        """Return whether a batch is blamed for its lost workers: after two losses, or more if batches overlapped."""
        worker = self._workers.get(lost.worker)
        reading = None if worker is None else worker.reading()
        overlapped = (
            reading is not None and reading.overlaps and reading.begun - reading.answered > 1
        )
        return lost.lost_workers >= (_POISON_LOSSES_OVERLAPPED if overlapped else _POISON_LOSSES)

    def on_overdue(self, overdue: messages.BatchOverdue) -> Verdict:
        """Decide what to do about a batch that was not answered in time: wait longer, retry it, or fail it."""
        name, was_read = overdue.worker, overdue.was_read
        limit_s = self.spec.execution_timeout_s
        worker = self._workers.get(name)
        if limit_s is None or worker is None or not worker.alive:
            return Verdict("wait", wait_s=_EXIT_NOTICE_S)  # the proxy will see the lane close
        stats = worker.stats.read()
        busy_s = stats.busy_s
        if was_read and stats.overlaps and overdue.read_ms < _RESPONSE_S * 1000:
            # The worker enforces the timeout itself, unless its event loop is blocked.
            return Verdict("wait", wait_s=_RESPONSE_S)
        if was_read and self._has_answered(stats, overdue.read_ms / 1000):
            what = "it finished a batch, but its response never arrived"
            return self._on_hang(worker, overdue, what)
        if busy_s is not None and busy_s < limit_s:  # with the batch of another proxy
            return Verdict("wait", wait_s=limit_s - busy_s)
        if busy_s is None and was_read:  # the response may be on its way
            return Verdict("wait", wait_s=min(limit_s, _RESPONSE_S))
        if busy_s is None and self._idle_at.get(name) != stats.begun:
            # It may have answered the batch since the proxy checked: wait, and check whether it is still idle.
            self._idle_at[name] = stats.begun
            return Verdict("wait", wait_s=limit_s)
        what = f"a batch was still running after {limit_s:g} s (execution_timeout_s)"
        if busy_s is None:
            what = f"it did not read a batch for {limit_s:g} s (execution_timeout_s)"
        return self._on_hang(worker, overdue, what)

    def _has_answered(self, stats: StatsReading, read_s: float) -> bool:
        """Return whether a worker has finished a batch that it read `read_s` seconds ago.

        If so, the response was lost.
        """
        if read_s == 0:  # first report: the response may still be on its way
            return False
        if stats.begun == stats.answered:
            return True
        streams = self.spec.python_model is not None and self.spec.python_model.streams
        policy = self.spec.config.get("model_transaction_policy", {})
        if streams or policy.get("decoupled") or stats.overlaps:
            return False
        # Otherwise it is running a later batch.
        return stats.busy_s is not None and stats.busy_s < read_s - _BATCH_START_S

    def _on_hang(self, worker: Worker, overdue: messages.BatchOverdue, what: str) -> Verdict:
        name, was_read = overdue.worker, overdue.was_read
        limit_s = self.spec.execution_timeout_s or 0.0
        self._emit(
            kinds.HANG,
            name,
            with_id(what, clean(overdue.request_id)),
            numbers={"pid": worker.pid, "limit_s": limit_s},
        )
        run_in_background(self._background_tasks, worker.end_hung(what))
        if not was_read:
            return Verdict("retry")
        if (
            self._may_retry
            and not overdue.final
            and overdue.lost_workers == 0
            and self._may_be_another_request(overdue, worker)
        ):
            self._counters.counts.retries += overdue.requests
            return Verdict("retry")
        text = (
            f"model {self.spec.name}: {what} in worker {name} (pid {worker.pid}), which is being "
            f"replaced; the stacks of its threads are in its log: pytriton-daemon logs {self.spec.name}"
        )
        verdict = self._fail(overdue, text, _MAX_HANGS)
        self._counters.counts.poison += overdue.lost_workers > 0
        self._count_failed("hung", overdue, verdict)
        return verdict

    def _count_failed(
        self, how: str, batch: messages.LaneLost | messages.BatchOverdue, verdict: Verdict
    ) -> None:
        """Count the failed requests: one if the batch's requests are retried one by one, otherwise all of them."""
        one_by_one = batch.consecutive_losses > 0 and not verdict.fails_rest
        self._counters.failed[how] += 1 if one_by_one else batch.requests

    @property
    def _may_retry(self) -> bool:
        return self.spec.on_crash == "retry" and not self.stopping and self.disabled_reason is None

    def _may_be_another_request(self, overdue: messages.BatchOverdue, worker: Worker) -> bool:
        """Return whether another request, in the same batch or in a concurrent one, may have caused the hang."""
        if worker.stats.read().overlaps:
            return True
        merges = (
            self.spec.max_inflight_batches > 1 and self.spec.config.get("max_batch_size", 0) > 1
        )
        return overdue.requests > 1 or merges

    def _fail(
        self, batch: messages.LaneLost | messages.BatchOverdue, text: str, most: int
    ) -> Verdict:
        """Build the verdict for a request or batch that has failed, and emit an event that names the request."""
        consecutive_losses = batch.consecutive_losses
        fails_rest = consecutive_losses >= most
        if fails_rest:
            text += (
                f"; {consecutive_losses} consecutive requests in the batch, retried one by one, failed like this: the model is "
                "considered broken, and the remaining requests of the batch fail as well"
            )
        reason = with_id(text, clean(batch.request_id))
        if batch.lost_workers >= _POISON_LOSSES:
            self._emit(
                kinds.POISON, batch.worker, reason, numbers={"lost_workers": batch.lost_workers}
            )
        else:
            self._emit(
                kinds.BATCH_FAILED,
                batch.worker,
                reason,
                numbers={"consecutive_losses": consecutive_losses},
            )
        return Verdict("fail", text, fails_rest=fails_rest)

    def _emit(
        self, kind: kinds.EventKind, worker: str, reason: str = "", *, numbers: Mapping[str, float]
    ) -> None:
        known = self._workers.get(worker)
        instance = known.instance if known is not None else None
        self._events.emit(kind, instance=instance, worker=worker, reason=reason, numbers=numbers)

    async def _explain_loss(self, name: str) -> str:
        """Explain what happened to a worker whose lane broke during a batch."""
        worker = self._workers.get(name)
        if worker is None:
            return "the worker of this batch exited"
        await _wait_for_exit(worker)
        if worker.exited.done():
            return worker.describe_end()
        return f"worker {name} closed its lane"


async def _wait_for_exit(worker: Worker) -> None:
    """Wait for a limited time until a worker whose lane broke during a batch has exited.

    The limit is longer if the worker is exiting. Its statistics page shows it: a worker that has only closed the lane
    records the end of that batch, or starts another one. The page of one that is dying stays as it is.
    """
    clock = asyncio.get_running_loop().time
    lost_at, before = clock(), worker.reading()
    while worker.alive:
        now = worker.reading()
        works = now.idle or (now.begun, now.answered) != (before.begun, before.answered)
        limit_s = _SLOW_EXIT_S if now.ending or not works else _EXIT_NOTICE_S
        left_s = lost_at + limit_s - clock()
        if left_s <= 0:
            return
        await asyncio.wait([worker.exited], timeout=min(left_s, STATS_POLL_INTERVAL_S))
