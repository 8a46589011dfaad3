"""Simulate the daemon's autoscaling policy on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from elastic import plot, shapes
from elastic.simulate import main
from elastic.simulation import Machine, Settings

from pytriton._protocol.messages import Autoscale

RULES = Autoscale(1, 8, up_after_s=2.0, down_after_s=20.0)


def test_instances_follow_a_square_wave() -> None:
    shape = shapes.square(40.0, seconds=240.0, period_s=120.0)
    model = Machine(shape, Settings(RULES)).run()["model"]
    counts = {tick.at: tick.instances for tick in model.ticks}
    assert counts[60.0] <= 2  # a tenth of the peak rate is the work of 0.4 instances
    assert 5 <= counts[75.0] <= 8  # the peak rate is the work of 4 instances
    assert counts[179.5] <= 2
    assert max(tick.waiting for tick in model.ticks if 80 <= tick.at < 120) < 40
    fixed = Machine(shape, Settings(Autoscale(8, 8))).run()["model"]
    assert model.instance_s < 0.7 * fixed.instance_s
    assert len(model.latencies) > 5000


def test_a_steady_load_does_not_flap() -> None:
    shape = shapes.Shape(900.0, {"model": lambda at: 20.0}, 20.0)
    model = Machine(shape, Settings(Autoscale(1, 8))).run()["model"]
    settled = [tick.instances for tick in model.ticks if tick.at > 60.0]
    assert max(settled) - min(settled) <= 2
    assert sum(a != b for a, b in zip(settled, settled[1:])) <= 12  # in 14 minutes


def test_scaling_stays_within_the_budget() -> None:
    rules = Autoscale(0, 4, idle_after_s=10.0, down_after_s=10.0)
    settings = Settings(rules, 0.05, memory=100, budget=100 * 12)
    machine = Machine(shapes.zipf(30.0, models=10, seconds=60.0), settings)
    models = machine.run()
    assert 0 < machine.peak_memory <= 100 * 12
    assert sum(len(model.latencies) for model in models.values()) > 1500


def test_fifty_models_take_turns_in_the_memory_of_five() -> None:
    rules = Autoscale(0, 1, idle_after_s=1e6)
    settings = Settings(rules, 0.01, 0.3, memory=100, budget=500)
    machine = Machine(shapes.zipf(2.0, seconds=300.0), settings)
    models = machine.run()
    latencies = [latency for model in models.values() for latency in model.latencies]
    assert 400 <= machine.peak_memory <= 500
    assert len(latencies) > 500
    waiting = [one for one in models.values() if one.waits_for_memory_since is not None]
    assert len(waiting) <= 2  # their requests arrived at the end
    assert max(latencies) < 1.0  # the load of the model, and the exit of the one suspended for it


def test_a_recorded_load_is_read(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    file.write_text("# a day\n100,5\n110,20.5\n\n130,0\n")
    shape = shapes.recorded(file)
    rate = shape.rates["model"]
    assert (shape.seconds, shape.peak) == (30.0, 20.5)
    assert [rate(at) for at in (0.0, 9.9, 10.0, 29.0)] == [5.0, 5.0, 20.5, 20.5]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1,2\nx,3\n", "line 2: 'x,3' is not"),
        ("2,2\n2,3\n", "line 2: its time is not later"),
        ("1,2\n", "needs at least two lines"),
    ],
)
def test_an_invalid_recording_is_refused(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "day.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=error):
        shapes.recorded(file)


def test_plots_are_well_formed() -> None:
    picture = plot.svg(
        "a < b", [plot.Panel("p", [plot.Line("l", [(0.0, 1.0), (2.0, 3.0)], steps=True)])]
    )
    root = ElementTree.fromstring(picture)
    paths = [one.get("d", "") for one in root.iter("{http://www.w3.org/2000/svg}path")]
    assert paths[-1].count("L") == 2  # a step: first along, then up


def test_the_script_prints_a_table_and_writes_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "short.csv"
    file.write_text("0,10\n20,30\n40,0\n")
    assert main(["recorded", "--recorded", str(file), "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["recorded", "1"], ["recorded", "8"]]
    assert (tmp_path / "recorded.svg").exists()
    assert main(["recorded", "--out", str(tmp_path)]) == 2
    assert "needs --recorded FILE" in capsys.readouterr().err
