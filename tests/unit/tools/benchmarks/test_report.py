"""The benchmark's arithmetic, on made-up measurements: medians, paired ratios, verdicts, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks.load.generators import _hidden
from benchmarks.reporting.figures import errors, ratio, rows
from benchmarks.reporting.report import render
from benchmarks.reporting.targets import verdicts


def measurement(
    system: str, workload: str, clients: int, number: int, requests_s: float, **others: Any
) -> dict[str, Any]:
    """Return one measurement of a round, without an error unless told otherwise."""
    return {
        "workload": workload, "system": system, "protocol": "http", "clients": clients,
        "round": number, "requests": 100, "requests_s": requests_s, "p50_ms": 1.0, "p99_ms": 2.0,
        "server_cpus": 1.0, "generator_cpus": 0.1, "others_cpus": 0.0, "cpu_us_per_request": 500.0,
        "failed": 0, "hidden": 0, "server_failures": 0, "wrong": None, **others,
    }  # fmt: skip


def series(system: str, workload: str, clients: int, rates: list[float]) -> list[dict[str, Any]]:
    """Return a measurement per round."""
    return [
        measurement(system, workload, clients, number, rate) for number, rate in enumerate(rates)
    ]


def run(*groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole run's results."""
    measurements = [one for group in groups for one in group]
    names = list(dict.fromkeys(one["system"] for one in measurements))
    meta = {
        "date": "2030-01-01", "commit": "abc", "cpu": "a CPU", "cores": 2, "memory_gb": 1.0,
        "kernel": "6", "python": "3.11", "load_average_before": 0.0, "generators": ["wrk"],
        "plan": {"rounds": 3, "seconds": 1.0}, "versions": {name: {name: "1"} for name in names},
    }  # fmt: skip
    return {
        "meta": meta,
        "titles": {name: name for name in names},
        "notes": dict.fromkeys(names, ""),
        "workloads": {"A": "identity"},
        "measurements": measurements,
        "footprint": [{"name": "start to ready", "system": "ours", "value": 4.0, "unit": "s"}],
        "skipped": [{"system": "mosec", "workload": "F", "reason": "no such streams"}],
    }


def test_a_row_has_the_median_and_the_ends_of_its_rounds() -> None:
    """Whatever order the rounds come in, and apart from other cases of the same system."""
    found = rows(series("ours", "A", 1, [300, 100, 110]) + series("ours", "A", 8, [7, 9]))
    rate = found[0].figures["requests_s"]
    assert (rate.middle, rate.least, rate.most) == (110, 100, 300)
    assert (found[0].rounds, found[0].requests, found[0].case) == (3, 300, ("A", "http", 1))
    assert found[1].figures["requests_s"].middle == 8


def test_a_ratio_is_paired_by_round() -> None:
    """A machine at half its speed in one round changes both sides, and so not the ratio."""
    measurements = series("ours", "A", 1, [400, 200, 420]) + series("stub", "A", 1, [100, 50, 100])
    case = ("A", "http", 1)
    found = ratio(measurements, ("ours", case), ("stub", case))
    assert found is not None
    assert (found.middle, found.least, found.most) == (4.0, 4.0, 4.2)
    assert ratio(measurements, ("ours", case), ("mosec", case)) is None


def test_verdicts_know_which_way_a_goal_points() -> None:
    """Requests/s are to be at least the goal, p99 at most; an instance more is compared with ours."""
    results = run(
        series("ours", "A", 1, [400, 400]),
        series("nvidia-pytriton", "A", 1, [101, 101]),
        series("ours", "C1", 8, [100]),
        series("ours", "C2", 8, [195]),
    )
    found = {(one.case[0], one.metric, one.theirs): one for one in verdicts(results)}
    rate = found[("A", "requests_s", "nvidia-pytriton")]
    assert rate.ratio is not None
    assert rate.ratio.middle == pytest.approx(400 / 101)
    assert not rate.met  # 3.96 of 4
    late = found[("A", "p99_ms", "nvidia-pytriton")]
    assert late.ratio is not None
    assert (late.ratio.middle, late.goal, late.met) == (1.0, "≤ 0.5", False)
    twice = found[("C2", "requests_s", "ours, C1")]
    assert twice.ratio is not None
    assert (twice.ratio.middle, twice.met) == (1.95, True)


@pytest.mark.parametrize(
    ("trouble", "count"),
    [
        ({}, 0),
        ({"failed": 2, "hidden": 3}, 5),
        ({"failed": 2, "server_failures": 7}, 7),
        ({"wrong": "other bytes"}, 1),
    ],
)
def test_every_kind_of_error_counts(trouble: dict[str, Any], count: int) -> None:
    """What the generator saw and what the server counted are the same requests."""
    assert errors(measurement("ours", "A", 1, 0, 10.0, **trouble)) == count


@pytest.mark.parametrize(
    ("answers", "received", "hidden"),
    [
        (1000, 1000 * 500, 0),
        (1000, 1004 * 500, 0),  # four clients had an answer under way at the end
        (1000, 900 * 500, 100),  # a tenth came without a body
        (1000, 1000 * 700, 400),  # all came with a longer one
        (0, 0, 0),
    ],
)
def test_errors_in_a_good_status_show_in_the_bytes(
    answers: int, received: int, hidden: int
) -> None:
    """wrk and h2load count bytes; a right answer has 500 here."""
    assert _hidden(answers, received, size=500, clients=4) == hidden


def test_the_report_shows_what_was_not_reached_and_what_was_left_out() -> None:
    results = run(series("ours", "A", 1, [500]), series("nvidia-pytriton", "A", 1, [100]))
    text = render(results)
    assert (
        "| A, http, 1 client | requests_s | nvidia-pytriton | ≥ 4 | 5.00 | 5.00 to 5.00 | yes |"
    ) in text
    assert "| A, http, 1 client | p99_ms | nvidia-pytriton | ≤ 0.5 | 1.00 |" in text
    assert "| start to ready | ours | 4.00 s | ≤ 3: **no** |" in text
    assert "- F: mosec: no such streams" in text


def test_a_round_without_its_cpus_is_left_out_of_a_ratio() -> None:
    """Unless there is no other: then the report says so."""
    case = ("A", "http", 1)
    ours = series("ours", "A", 1, [100, 90, 4])
    theirs = series("stub", "A", 1, [100, 100, 100])
    ours[2].update(stolen_cpus=1.8, cores=2)
    found = ratio(ours + theirs, ("ours", case), ("stub", case))
    assert found is not None
    assert (found.least, found.most, found.disturbed) == (0.9, 1.0, False)
    found = ratio(ours[2:] + theirs, ("ours", case), ("stub", case))
    assert found is not None
    assert (found.middle, found.disturbed) == (0.04, True)
    text = render(run(ours[2:], theirs))
    assert "| **no**, CPUs stolen |" in text
    assert "1 of 1 measurements lacked more than a tenth of the CPUs" in text


def test_a_ratio_of_nothing_is_not_a_number_of_any_kind() -> None:
    """A generator that finished no request says NaN; the row says that it was not measured."""
    case = ("A", "http", 1)
    nothing = series("ours", "A", 1, [math.nan]) + series("stub", "A", 1, [1.0])
    assert ratio(nothing, ("ours", case), ("stub", case)) is None
