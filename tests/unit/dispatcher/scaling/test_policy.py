"""The policy: a model's observed load determines its number of instances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._protocol.messages import Autoscale
from pytriton.dispatcher.scaling.policy import Decision, Sample, Window, decide

RULES = Autoscale(least=1, most=8, target=0.7, up_after_s=2.0, down_after_s=10.0)
STEP_S = 0.5


def seen(
    *stretches: tuple[float, float, float], instances: int, changed_at: float = -1000.0
) -> Window:
    """Return a window of stretches: seconds, busy instances, waiting requests; a batch takes 100 ms."""
    window = Window(600.0)
    window.changed_at = changed_at
    at = 0.0
    for seconds, busy, waiting in stretches:
        for _ in range(round(seconds / STEP_S)):
            at += STEP_S
            batches = round(10 * busy * STEP_S)
            window.add(Sample(at, STEP_S, instances, busy, waiting, batches, batches))
    return window


@pytest.mark.parametrize(
    ("now", "stretches", "wanted", "why"),
    [
        pytest.param(1, [(60, 0.0, 0)], 1, "steady", id="nothing to do"),
        pytest.param(1, [(60, 0.6, 0)], 1, "steady", id="within its target"),
        pytest.param(1, [(60, 0.8, 0)], 2, "load", id="above its target"),
        pytest.param(2, [(60, 1.3, 0)], 2, "steady", id="two within their target"),
        pytest.param(2, [(60, 1.8, 0)], 3, "load", id="two above it"),
        pytest.param(1, [(60, 1.0, 20)], 3, "load", id="what waits is to be worked off in time"),
        pytest.param(2, [(60, 2.0, 2)], 4, "saturated", id="saturated: nobody knows the load"),
        pytest.param(2, [(60, 2.0, 1)], 3, "load", id="busy, but hardly anything waits"),
        pytest.param(8, [(60, 8.0, 900)], 8, "steady", id="never above its most"),
        pytest.param(3, [(60, 3.0, 900)], 8, "load", id="at most its most"),
        pytest.param(1, [(60, 0.1, 0), (0.5, 1.0, 9)], 1, "steady", id="not before up_after_s"),
        pytest.param(1, [(60, 0.1, 0), (2, 1.0, 9)], 3, "load", id="after up_after_s"),
        pytest.param(1, [(1.5, 1.0, 9), (0.5, 0, 0)], 1, "steady", id="a burst that is over"),
        pytest.param(4, [(20, 0.1, 0)], 1, "quiet", id="down at once to what is needed"),
        pytest.param(4, [(20, 1.2, 0)], 2, "quiet", id="down to what the load leaves room in"),
        pytest.param(4, [(20, 1.3, 0)], 3, "quiet", id="not to what it would go up from"),
        pytest.param(4, [(8, 0.1, 0)], 4, "steady", id="not before down_after_s"),
        pytest.param(4, [(6, 2.7, 0), (4, 0.1, 0)], 4, "steady", id="a busy stretch holds it"),
        pytest.param(9, [(20, 0.1, 0)], 8, "bounds", id="above its most"),
        pytest.param(0, [(20, 0.0, 0)], 1, "bounds", id="below its least"),
    ],
)
def test_decisions(
    now: int, stretches: list[tuple[float, float, float]], wanted: int, why: str
) -> None:
    decision = decide(RULES, seen(*stretches, instances=now), now)
    assert (decision.instances, decision.why) == (wanted, why)


SLEEPY = Autoscale(least=0, most=4, down_after_s=10.0, idle_after_s=30.0)


@pytest.mark.parametrize(
    ("now", "rules", "stretches", "changed_at", "wanted"),
    [
        pytest.param(2, SLEEPY, [(31, 0.0, 0)], -1000, 0, id="idle long enough"),
        pytest.param(2, SLEEPY, [(29, 0.0, 0)], -1000, 1, id="not yet"),
        pytest.param(1, SLEEPY, [(60, 0.0, 0), (1, 0.1, 0), (29, 0, 0)], -1000, 1, id="asked"),
        pytest.param(1, SLEEPY, [(60, 0.0, 0)], 50.0, 1, id="has just come"),
        pytest.param(1, RULES, [(9000, 0.0, 0)], -1000, 1, id="may not sleep"),
        pytest.param(0, SLEEPY, [(60, 0.0, 0)], -1000, 0, id="sleeps on"),
    ],
)
def test_an_idle_model_is_scaled_to_zero(
    now: int,
    rules: Autoscale,
    stretches: list[tuple[float, float, float]],
    changed_at: float,
    wanted: int,
) -> None:
    window = seen(*stretches, instances=now, changed_at=changed_at)
    assert decide(rules, window, now).instances == wanted


def test_observations_before_a_change_are_ignored() -> None:
    loaded = [(60.0, 2.0, 9.0)]
    assert decide(RULES, seen(*loaded, instances=2), 2).instances == 4
    assert decide(RULES, seen(*loaded, instances=2, changed_at=59.0), 2).instances == 2


def test_long_batches_need_at_most_one_instance_each() -> None:
    window = Window(600.0)
    for step in range(1, 9):  # one batch, which takes longer than all this; three wait
        window.add(Sample(step * STEP_S, STEP_S, 1, 1.0, waiting=3.0))
    assert decide(RULES, window, 1).load == pytest.approx(4.0)


def test_waiting_requests_count_in_batches() -> None:
    window = Window(600.0)
    for step in range(1, 9):
        window.add(Sample(step * STEP_S, STEP_S, 1, 1.0, waiting=64.0, requests=160, batches=5))
    assert decide(RULES, window, 1).stats.waiting == pytest.approx(2.0)


def test_a_decision_reports_its_figures() -> None:
    window = seen((60, 0.8, 0), instances=1)
    assert decide(RULES, window, 1).text(1).startswith("1 → 2 instances (load): load 0.8 instances")


@given(
    load=st.floats(0.01, 7.9),
    target=st.floats(0.2, 0.95),
    now=st.integers(1, 12),
    most=st.integers(1, 12),
)
def test_a_steady_load_never_scales_down_and_up_again(
    load: float, target: float, now: int, most: int
) -> None:
    """From any start, after at most a few changes in one direction, the number is stable."""
    rules = Autoscale(1, most, target, 2.0, 10.0)
    now = min(now, most)
    history: list[Decision] = []
    counts = [now]
    for _ in range(12):
        busy = min(load, counts[-1])
        waiting = 5.0 * counts[-1] if load > counts[-1] else 0.0
        history.append(decide(rules, seen((60, busy, waiting), instances=counts[-1]), counts[-1]))
        counts.append(history[-1].instances)
    assert counts[-1] == counts[-2]
    changes = [new - old for old, new in zip(counts, counts[1:]) if new != old]
    # Up as often as it takes; once it is too many, down once, and never up again.
    downs = [step for step, change in enumerate(changes) if change < 0]
    assert not downs or all(change < 0 for change in changes[downs[0] :])
    assert all(1 <= count <= max(most, now) for count in counts)
