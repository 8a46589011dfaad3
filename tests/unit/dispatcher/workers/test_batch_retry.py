"""What happens to requests whose worker was lost, or that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes.fake_worker import FakeWorker
from fakes.virtual_time import VirtualLoop

from pytriton._protocol import messages
from pytriton._protocol.lanes.stats_page import StatsReading
from pytriton.dispatcher.telemetry.events.events import Events
from pytriton.dispatcher.workers.batch_retry import BatchRetry

BATCHING = messages.ModelSpec("m", 1, {"max_batch_size": 8}, messages.WorkerEnvironment("python"))
LIMITED = msgspec.structs.replace(BATCHING, execution_timeout_s=2.0)


class Busy:
    """A worker that has been busy with a batch for this long."""

    alive, pid, instance, log_hint = True, 7, 0, ""

    def __init__(self, busy_s: float | None, *, overlaps: bool = False) -> None:
        self.ended: list[str] = []
        self.stats = self
        self._busy_s = busy_s
        self._overlaps = overlaps

    def read(self) -> StatsReading:
        return StatsReading(1, int(self._busy_s is None), self._busy_s, overlaps=self._overlaps)

    async def end_hung(self, why: str) -> None:
        self.ended.append(why)


def loss(spec: messages.ModelSpec = BATCHING, **facts: Any) -> messages.Verdict:
    lost = messages.LaneLost("r", "w", **{"lost_workers": 1, **facts})
    return asyncio.run(BatchRetry(spec, {}).on_loss(lost))


def overdue(
    spec: messages.ModelSpec, busy_s: float | None, *, overlaps: bool = False, **facts: Any
) -> tuple[messages.Verdict, Busy]:
    worker: Any = Busy(busy_s, overlaps=overlaps)

    async def judge() -> messages.Verdict:
        batch_retry = BatchRetry(spec, {"w": worker})
        asked = messages.BatchOverdue("r", "w", **{"was_read": True, **facts})
        verdict = batch_retry.on_overdue(asked)
        await asyncio.gather(*batch_retry._background_tasks)
        return verdict

    return asyncio.run(judge()), worker


def test_the_first_loss_is_retried_and_the_second_is_blamed_on_the_request() -> None:
    assert loss(requests=4).action == "retry"
    verdict = loss(lost_workers=2, consecutive_losses=1)
    assert (verdict.action, verdict.fails_rest) == ("fail", False)
    assert "1 worker crashed on the same request before" in verdict.text


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        (msgspec.structs.replace(BATCHING, on_crash="fail"), {"requests": 4}),
        (BATCHING, {"final": True}),
    ],
    ids=["must not run twice", "answered in part"],
)
def test_batches_that_cannot_be_retried_fail(spec: messages.ModelSpec, facts: Any) -> None:
    assert loss(spec, **facts).action == "fail"


def test_many_losses_in_a_row_are_blamed_on_the_model() -> None:
    assert not loss(lost_workers=2, consecutive_losses=7).fails_rest
    verdict = loss(lost_workers=2, consecutive_losses=8)
    assert verdict.fails_rest
    assert "8 consecutive requests in the batch" in verdict.text


async def test_events_name_the_request_and_the_proxy_names_it_in_the_error() -> None:
    reported: list[messages.Event] = []
    worker: Any = Busy(3.0)
    batch_retry = BatchRetry(LIMITED, {"w": worker}, events=Events([reported.append]))
    lost = messages.LaneLost("r", "gone", 2, consecutive_losses=1, request_id="order\n17")
    overdue = messages.BatchOverdue("r", "w", was_read=True, request_id="order-18")
    poison, hang = await batch_retry.on_loss(lost), batch_retry.on_overdue(overdue)
    await asyncio.gather(*batch_retry._background_tasks)
    assert [one.kind for one in reported] == ["poison", "hang", "batch_failed"]
    assert reported[0].reason == f"{poison.text} [request id: order?17]"
    assert reported[1].reason.endswith("(execution_timeout_s) [request id: order-18]")
    assert reported[2].reason == f"{hang.text} [request id: order-18]"
    assert "request id" not in poison.text + hang.text


async def test_nothing_is_retried_while_the_workers_are_being_stopped() -> None:
    batch_retry = BatchRetry(BATCHING, {})
    batch_retry.stopping = True
    assert (await batch_retry.on_loss(messages.LaneLost("r", "w", 1))).action == "fail"


@pytest.mark.parametrize(
    ("lanes", "facts", "action"),
    [
        (1, {"requests": 4}, "retry"),
        (1, {"requests": 1}, "fail"),  # it was alone from the beginning
        (2, {"requests": 1}, "retry"),  # it may have been merged with another lane's
        (2, {"requests": 1, "lost_workers": 1, "consecutive_losses": 1}, "fail"),
        (1, {"requests": 4, "final": True}, "fail"),
    ],
)
def test_a_hang_is_retried_only_if_another_request_may_have_caused_it(
    lanes: int, facts: Any, action: str
) -> None:
    spec = msgspec.structs.replace(LIMITED, max_inflight_batches=lanes)
    verdict, worker = overdue(spec, 2.5, **facts)
    assert verdict.action == action
    assert not verdict.fails_rest
    assert worker.ended


def test_a_model_that_always_hangs_fails_the_rest_of_the_batch() -> None:
    verdict, _ = overdue(LIMITED, 2.5, lost_workers=1, consecutive_losses=3)
    assert (verdict.action, verdict.fails_rest) == ("fail", True)


def test_a_batch_that_waits_for_another_lanes_batch_does_not_hang() -> None:
    verdict, worker = overdue(LIMITED, 0.5, requests=4)
    assert (verdict.action, verdict.wait_s) == ("wait", 1.5)
    assert not worker.ended


@pytest.mark.parametrize("busy_s", [None, 0.5], ids=["idle", "with a later batch"])
def test_a_lost_response_is_a_hang(busy_s: float | None) -> None:
    """The first time, the response may still be in transit."""
    verdict, worker = overdue(LIMITED, busy_s)
    assert (verdict.action, worker.ended) == ("wait", [])
    verdict, worker = overdue(LIMITED, busy_s, read_ms=1500)
    assert verdict.action == "fail"
    assert "its response never arrived" in verdict.text
    assert worker.ended
    verdict, worker = overdue(LIMITED, busy_s, was_read=False)
    assert (verdict.action, worker.ended) == ("wait", [])


def test_an_overlapping_batch_is_waited_for() -> None:
    config = {"model_transaction_policy": {"decoupled": True}}
    spec = msgspec.structs.replace(LIMITED, config=config)
    assert overdue(spec, 0.5, read_ms=1500)[0].action == "wait"
    assert overdue(spec, None, read_ms=1500)[0].action == "fail"


def test_a_batch_that_started_when_it_was_accepted_is_waited_for() -> None:
    assert overdue(LIMITED, 1.4, read_ms=1500)[0].action == "wait"


class Ended:
    """A worker that has exited with this many batches in flight."""

    alive, instance, log_hint = False, 0, ""

    def __init__(self, under_way: int) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited.set_result(0)
        self._under_way = under_way

    def reading(self) -> StatsReading:
        return StatsReading(9 + self._under_way, 9, None, overlaps=True)

    def describe_end(self) -> str:
        return "worker w was killed"


@pytest.mark.parametrize(
    ("under_way", "losses", "action"),
    [(1, 1, "retry"), (1, 2, "fail"), (3, 2, "retry"), (3, 3, "retry"), (3, 4, "fail")],
)
async def test_overlapping_batches_share_the_blame(
    under_way: int, losses: int, action: str
) -> None:
    worker: Any = Ended(under_way)
    lost = messages.LaneLost("r", "w", lost_workers=losses, consecutive_losses=losses - 1)
    assert (await BatchRetry(BATCHING, {"w": worker}).on_loss(lost)).action == action


def is_dying(worker: FakeWorker) -> None:
    """Leave the batch as it is."""


def is_finalizing(worker: FakeWorker) -> None:
    worker.stats_of_worker.mark_ending()
    worker.answer()


@pytest.mark.parametrize(
    ("then", "exits_after_s", "verdict_after_s", "reason"),
    [
        (is_dying, 9.0, 9.0, "worker w1 exited"),
        (is_finalizing, 9.0, 9.0, "worker w1 exited"),
        (is_dying, 60.0, 10.0, "worker w1 closed its lane"),
        (FakeWorker.answer, 60.0, 2.0, "worker w1 closed its lane"),
        (FakeWorker.begin, 60.0, 2.0, "worker w1 closed its lane"),
    ],
)
def test_a_slow_exit_is_awaited_for_its_reason(
    loop: VirtualLoop,
    then: Callable[[FakeWorker], None],
    exits_after_s: float,
    verdict_after_s: float,
    reason: str,
) -> None:
    """A process closes its lanes before it frees its memory and devices. A worker that goes on has not exited."""

    async def lose_lane() -> None:
        worker = FakeWorker(1)
        worker.begin()
        loop.call_later(0.1, then, worker)
        loop.call_later(exits_after_s, worker.end)
        lost = messages.LaneLost("r", "w1", 1, final=True)
        verdict = await BatchRetry(BATCHING, {"w1": worker}).on_loss(lost)
        assert verdict.text == f"model m: {reason} while it ran this batch{worker.log_hint}"
        assert loop.time() == pytest.approx(verdict_after_s)
        await worker.exited

    loop.run(lose_lane())


def test_a_worker_with_overlapping_batches_enforces_the_timeout_itself() -> None:
    """It is killed only if it does not, because one of the batches blocks its event loop."""
    verdict, worker = overdue(LIMITED, 2.0, overlaps=True)
    assert (verdict.action, worker.ended) == ("wait", [])
    verdict, worker = overdue(LIMITED, 4.1, overlaps=True, read_ms=2100)
    assert verdict.action == "retry"
    assert "still running after 2 s" in worker.ended[0]
    assert overdue(LIMITED, 4.1, overlaps=True, read_ms=2100, lost_workers=1)[0].action == "fail"
