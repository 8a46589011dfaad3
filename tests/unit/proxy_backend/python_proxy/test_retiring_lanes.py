"""A retiring worker with streams, at the Python proxy: the streams continue, and the next batch goes elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes.lane_worker import Hangup
from fakes.proxy_harness import ANSWER, LAST, Proxy, ProxyHarness, batch_of, ended, requests
from fakes.triton.fake_stub import FINAL
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    BatchReturned,
    FromProxy,
    Room,
)


def finish(worker: Lane, number: int) -> None:
    worker.send(BatchPart(number, [LAST]))
    worker.send(BatchDone(number, []))


def gone(worker: Lane) -> bool:
    """Read what the proxy sends until it disconnects."""
    try:
        while True:
            worker.receive()
    except LaneClosed:
        return True


@pytest.mark.parametrize("until_returned", [False, True])
def test_streams_continue_while_the_next_batch_goes_elsewhere(
    make: Callable[..., Proxy], until_returned: bool
) -> None:
    proxy = make(until_returned=until_returned)
    (first,) = proxy.begin()
    retiring = proxy.worker()
    one = batch_of(retiring)
    retiring.send(Room(0))
    retiring.send(BatchBegun(one.id))
    retiring.send(BatchPart(one.id, [ANSWER]))
    if until_returned:
        retiring.send(BatchReturned(one.id))
    proxy.executed()
    (second,) = proxy.begin()
    worker = proxy.worker(1)
    other = batch_of(worker)
    worker.send(BatchBegun(other.id))
    if until_returned:
        worker.send(BatchReturned(other.id))
    proxy.executed()
    finish(worker, other.id)
    eventually(lambda: ended(second), "it is answered")
    assert not ended(first)
    finish(retiring, one.id)
    assert gone(retiring)
    assert first.sent == [({}, 0), ({}, FINAL)]
    assert second.sent == [({}, FINAL)]


def test_a_lane_that_closes_at_that_moment_is_ended_once(make: Callable[..., Proxy]) -> None:
    """As when a model is unloaded, and its workers exit."""
    proxy = make()
    proxy.begin()
    worker = proxy.worker()
    worker.send(BatchBegun(batch_of(worker).id))
    proxy.executed()
    lane = proxy.streams._lane
    assert lane is not None
    proxy.lose(worker)
    lane._reader.join(60)
    lane.end()


def test_a_lane_without_streams_is_closed(make: Callable[..., Proxy]) -> None:
    proxy = make()
    proxy.streams.attach()
    proxy.worker().send(Room(0))
    assert gone(proxy.attachment.workers[0])
    (sender,) = proxy.begin()
    worker = proxy.worker(1)
    batch = batch_of(worker)
    worker.send(BatchBegun(batch.id))
    finish(worker, batch.id)
    eventually(lambda: ended(sender), "it is answered")


def test_retry_decisions_name_the_lost_worker(harness: ProxyHarness) -> None:
    """Rather than its successor."""
    lanes: list[Lane] = []

    def retires(lane: Lane, message: FromProxy) -> None:
        if not isinstance(message, Batch):
            raise Hangup
        lanes.append(lane)
        lane.send(Room(0))
        lane.send(BatchBegun(message.id))

    def answers(lane: Lane, message: FromProxy) -> None:
        if isinstance(message, Batch):
            lane.send(BatchBegun(message.id))
            finish(lane, message.id)

    harness.verdicts.append(messages.Verdict("fail", "it died"))
    harness.worker(retires, lambda lane: lane.send(Room(4)))
    model = harness.load(decoupled=True)
    (first,) = requests("a")
    model.execute([first])
    harness.worker(answers, lambda lane: lane.send(Room(4)))
    (second,) = requests("b")
    model.execute([second])
    eventually(lambda: ended(second.sender), "it is answered")
    lanes[0].hang_up()
    eventually(lambda: ended(first.sender), "it is answered, too")
    assert [one.worker for one in harness.heard(messages.LaneLost)] == ["w0"]
    reported = first.sender.sent[-1][0]
    assert isinstance(reported, tuple)
    assert reported[0] == "it died [request id: a]"
