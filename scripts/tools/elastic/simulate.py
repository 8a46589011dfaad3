"""Simulate the autoscaling policy on a virtual clock: print the cost and the latencies, and write plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elastic import plot, shapes
from elastic.shapes import Shape
from elastic.simulation import Machine, Model, Settings
from pytriton._protocol.messages import Autoscale

_SHAPES = ("step", "square", "sine", "day", "zipf", "recorded")
_MIB = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Simulate the given shapes; return the exit code."""
    given = _parser().parse_args(arguments)
    names = given.shapes or [name for name in _SHAPES if name != "recorded" or given.recorded]
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{'shape':<9} {'instances':<10} {'requests':>8} {'p50 ms':>8} {'p99 ms':>8} {'worst ms':>9} "
        f"{'instance-s':>10} {'changes':>7} {'peak MiB':>9}"
    )
    try:
        for name in names:
            _simulate(name, _shape(name, given), given, folder)
    except (ValueError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print(f"plots: {folder}/*.svg")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/tools/simulate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("shapes", nargs="*", choices=[*_SHAPES, []], metavar="SHAPE",
                        help=f"load shapes: {', '.join(_SHAPES)}")  # fmt: skip
    add = parser.add_argument
    add("--rate", type=float, default=50.0, help="peak rate, in requests per second")
    add("--service", type=float, default=0.1, help="mean duration of a request, in seconds")
    add("--load", type=float, default=1.0, help="duration of the load of an instance, in seconds")
    add("--min-instances", type=int, default=1, help="minimum number of instances; 0 for zipf")
    add("--max-instances", type=int, default=8, help="maximum number of instances")
    add("--target", type=float, default=0.7, help="as in Autoscale")
    add("--up-after", type=float, default=2.0, help="as in Autoscale, in seconds")
    add("--down-after", type=float, default=30.0, help="as in Autoscale, in seconds")
    add("--idle-after", type=float, default=60.0, help="as in Autoscale, in seconds")
    add("--memory", type=int, default=1000, help="memory of an instance, in MiB")
    add("--budget", type=int, help="memory budget of all models, in MiB; no limit if not given")
    add("--recorded", help="file with lines of 'seconds,requests per second'")
    add("--out", default="build/simulate", help="output folder of the plots")
    return parser


def _shape(name: str, given: argparse.Namespace) -> Shape:
    if name == "recorded":
        if not given.recorded:
            raise ValueError("the shape recorded needs --recorded FILE")
        return shapes.recorded(Path(given.recorded))
    shape: Shape = getattr(shapes, name)(given.rate)
    return shape


def _simulate(name: str, shape: Shape, given: argparse.Namespace, folder: Path) -> None:
    least = 0 if name == "zipf" else given.min_instances
    rules = Autoscale(
        least, given.max_instances, given.target, given.up_after, given.down_after, given.idle_after
    )
    budget = None if given.budget is None else given.budget * _MIB
    settings = Settings(rules, given.service, given.load, given.memory * _MIB, budget)
    machine = Machine(shape, settings)
    models = machine.run()
    _print(name, f"{least} to {given.max_instances}", models, machine.peak_memory)
    picture = _picture(f"{name}: {least} to {given.max_instances} instances", models)
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    if name != "zipf":  # for comparison
        fixed = msgspec.structs.replace(rules, least=given.max_instances)
        machine = Machine(shape, settings._replace(rules=fixed))
        _print(name, f"{given.max_instances} fixed", machine.run(), machine.peak_memory)


def _print(name: str, instances: str, models: Mapping[str, Model], memory: int) -> None:
    latencies = sorted(latency for model in models.values() for latency in model.latencies)
    count = len(latencies)
    ranks = (count // 2, min(count - 1, count * 99 // 100), count - 1)
    p50, p99, worst = (1000 * latencies[rank] if count else 0.0 for rank in ranks)
    cost = sum(model.instance_s for model in models.values())
    changes = sum(model.changes for model in models.values())
    print(
        f"{name:<9} {instances:<10} {count:>8} {p50:>8.0f} {p99:>8.0f} {worst:>9.0f} {cost:>10.0f} {changes:>7} "
        f"{memory // _MIB:>9}"
    )


def _picture(title: str, models: Mapping[str, Model]) -> str:
    rows = list(zip(*(model.ticks for model in models.values())))
    instances = [(row[0].at, float(sum(tick.instances for tick in row))) for row in rows]
    rate = [(row[0].at, sum(tick.rate for tick in row)) for row in rows]
    waiting = [(row[0].at, float(sum(tick.waiting for tick in row))) for row in rows]
    return plot.svg(
        title,
        [
            plot.Panel("requests per second", [plot.Line("arriving", rate)]),
            plot.Panel("instances", [plot.Line("ready", instances, steps=True)]),
            plot.Panel("requests in the queue", [plot.Line("waiting", waiting)]),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
