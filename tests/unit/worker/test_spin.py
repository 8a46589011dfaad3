"""When a worker waits actively for its next batch, and when it sleeps at once."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton.worker.spin import Events, SpinningPoll

BATCH: Events = [(7, 1)]
#: Times between two batches, in µs.
SOON, LATE = 50, 5_000


class Machine:
    """A processor, a clock, and batches that arrive at given times after the previous wait."""

    def __init__(self, yield_us: int = 1) -> None:
        self.now_us = 0
        self.arrives_us = 0
        self.yield_us = yield_us
        self.timeouts: list[float | None] = []
        self.poll = SpinningPoll(self._poll, lambda: self.now_us * 1000, self._yield)

    def waits(self, arrivals_us: Iterable[int], work_us: int = 0) -> list[bool]:
        """Wait for batches that arrive after these times, and work on each. Return which waits slept."""
        found = []
        for arrival_us in arrivals_us:
            self.arrives_us = self.now_us + arrival_us
            assert self.poll(None) == BATCH
            found.append(self.timeouts[-1] is None)
            self.now_us += work_us
        return found

    @property
    def polled(self) -> int:
        """The number of times that it polled without sleeping."""
        return self.timeouts.count(0)

    def _poll(self, timeout_s: float | None) -> Events:
        self.timeouts.append(timeout_s)
        if timeout_s != 0:
            self.now_us = max(self.now_us, self.arrives_us)
        return BATCH if self.now_us >= self.arrives_us else []

    def _yield(self) -> None:
        self.now_us += self.yield_us


def test_it_polls_while_batches_arrive_soon() -> None:
    assert Machine().waits([SOON] * 100) == [True, True] + [False] * 98


def test_it_sleeps_while_batches_arrive_late() -> None:
    machine = Machine()
    assert all(machine.waits([LATE] * 100))
    assert machine.polled == 0


def test_it_sleeps_between_batches_that_take_long() -> None:
    machine = Machine()
    assert all(machine.waits([SOON] * 100, work_us=5_000))
    assert machine.polled == 0


def test_an_idle_worker_polls_no_longer_than_once() -> None:
    machine = Machine()
    machine.waits([SOON] * 3)
    before_us = machine.now_us
    assert machine.waits([10_000_000]) == [True]
    assert machine.now_us - before_us == 10_000_000
    polled = machine.polled
    assert all(machine.waits([10_000_000] * 3))
    assert machine.polled == polled


def test_a_busy_processor_is_left_to_others() -> None:
    machine = Machine(yield_us=3_000)
    assert all(machine.waits([SOON] * 10_000))
    assert machine.polled < 10  # each failure costs 3 ms, and 10,000 waits earn 20 ms


def test_a_processor_that_is_often_busy_costs_little() -> None:
    """Here, every other attempt finds the processor busy."""
    machine = Machine()
    for _ in range(5_000):
        machine.yield_us = 3_001 - machine.yield_us
        machine.waits([SOON])
    assert machine.now_us < 5_000 * SOON * 1.2


def test_polling_in_vain_ends() -> None:
    """Batches arrive in pairs, so that each first wait of a pair looks as if the next would be short."""
    machine = Machine()
    machine.waits([SOON, LATE] * 2_500)
    assert machine.polled < 5_000 * 2 + 200  # 2 µs a wait; each poll takes 1 µs here


def test_it_polls_again_once_the_processor_is_free() -> None:
    machine = Machine(yield_us=3_000)
    machine.waits([SOON] * 100)
    machine.yield_us = 1
    assert not any(machine.waits([SOON] * 2_000)[-50:])


def test_the_timeout_is_kept() -> None:
    machine = Machine()
    machine.waits([SOON] * 2)
    machine.arrives_us = machine.now_us + LATE
    assert machine.poll(1.5) == BATCH
    assert machine.timeouts[-1] == 1.5
    assert set(machine.timeouts[2:-1]) == {0}  # it polled first
