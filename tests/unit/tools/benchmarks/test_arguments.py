"""What nobody can measure is refused before anything is installed or started."""

from __future__ import annotations

import pytest
from benchmarks import counter_cost, systems, workloads
from benchmarks.__main__ import parse, split_only
from benchmarks.systems.base import SERVERS

from pytriton._protocol.lanes.stats_page import WorkerStatsPage


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rounds", "0"], "--rounds: must be more than 0, not 0"),
        (["--seconds", "-1"], "--seconds: must be more than 0, not -1"),
        (["--seconds", "nan"], "--seconds: must be more than 0, not nan"),
        (["--protocols", "http,smtp"], "no protocol 'smtp'; there are: http, grpc"),
        (["--report", "/no/such/results.json"], "there is no file /no/such/results.json"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_telemetry_selects_its_workloads() -> None:
    args = parse(["--recording", "--quick"])
    split_only(args)
    loads = workloads.select(args.workloads)
    assert [one.key for one in loads] == ["A", "D", "F"]
    chosen = systems.needed(systems.select(args.systems), loads, set())
    assert {one.name for one in chosen} == set(systems.OBSERVED)
    usual = {one.name for one in systems.select(None)}
    assert usual & set(systems.OBSERVED) == {"ours"}


def test_the_cost_of_counting_is_reported_for_batches_and_streams() -> None:
    batches, responses = counter_cost.lines(rounds=2, calls=3)
    assert batches.startswith("a batch: ")
    assert responses.startswith("a response of a stream: ")


def test_workers_without_counters_show_that_calls_begin_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(SERVERS)
    import reduced_counters

    near, descriptor = WorkerStatsPage.create()
    far = WorkerStatsPage(descriptor)
    begun_ns = reduced_counters._begin(far, 3, 3, 1)
    assert (near.read().begun, near.read().requests, near.read().idle) == (1, 3, False)
    assert reduced_counters._end(far, begun_ns) == 1
    assert near.read().idle
    assert sum(near.counts().call_buckets) == near.counts().rows == 0
    near.close()
    far.close()
