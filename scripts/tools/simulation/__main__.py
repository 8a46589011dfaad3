"""`scripts/tools/simulate`: plays load shapes, prints what they cost and how long requests took, writes plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pytriton._protocol.messages import Autoscale
from pytriton.dispatcher.scaling.policy import Cost, MachineResources
from simulation import plot, shapes
from simulation.machine import Machine, Model, Setting
from simulation.shapes import Shape

_SHAPES = ("step", "square", "sine", "day", "zipf", "recorded")
_MIB = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Play what is asked for; return the exit code."""
    given = _parser().parse_args(arguments)
    names = given.shapes or [name for name in _SHAPES if name != "recorded" or given.recorded]
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{'shape':<9} {'instances':<10} {'requests':>8} {'p50 ms':>8} {'p99 ms':>8} {'worst ms':>9} "
        f"{'instance-s':>10} {'changes':>7} {'most MiB':>9}"
    )
    try:
        for name in names:
            _play(name, _shape(name, given), given, folder)
    except (ValueError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print(f"plots: {folder}/*.svg")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/tools/simulate", description=__doc__)
    parser.add_argument("shapes", nargs="*", choices=[*_SHAPES, []], metavar="SHAPE")
    parser.add_argument("--rate", type=float, default=50.0, help="highest requests per second (50)")
    parser.add_argument("--service", type=float, default=0.1, help="seconds of a request (0.1)")
    parser.add_argument("--load", type=float, default=1.0, help="seconds to load an instance (1)")
    parser.add_argument(
        "--min-instances", type=int, default=1, help="instances at least (1; zipf: 0)"
    )
    parser.add_argument("--max-instances", type=int, default=8, help="instances at most (8)")
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--up-after", type=float, default=2.0)
    parser.add_argument("--down-after", type=float, default=30.0)
    parser.add_argument("--idle-after", type=float, default=60.0)
    parser.add_argument(
        "--cpus", type=float, default=1e6, help="of the machine; an instance takes one"
    )
    parser.add_argument("--memory", type=int, default=1000, help="MiB of an instance (1000)")
    parser.add_argument("--machine-memory", type=int, help="MiB of the machine (no limit)")
    parser.add_argument(
        "--budget",
        type=int,
        help="MiB for all models: idle ones are suspended for others (no limit)",
    )
    parser.add_argument("--recorded", help="file of 'seconds,requests per second'")
    parser.add_argument("--out", default="build/simulate", help="folder of the plots")
    return parser


def _shape(name: str, given: argparse.Namespace) -> Shape:
    if name == "recorded":
        if not given.recorded:
            raise ValueError("the shape recorded needs --recorded FILE")
        return shapes.recorded(Path(given.recorded))
    made: Shape = getattr(shapes, name)(given.rate)
    return made


def _play(name: str, shape: Shape, given: argparse.Namespace, folder: Path) -> None:
    least = 0 if name == "zipf" else given.min_instances
    rules = Autoscale(
        least, given.max_instances, given.target, given.up_after, given.down_after, given.idle_after
    )
    cpus = 1.0 if given.cpus < 1e6 else 0.0
    setting = Setting(
        rules,
        given.service,
        given.load,
        Cost(cpus, given.memory * _MIB),
        MachineResources(
            given.cpus, None if given.machine_memory is None else given.machine_memory * _MIB
        ),
        budget=None if given.budget is None else given.budget * _MIB,
    )
    machine = Machine(shape, setting)
    models = machine.run()
    _print(name, f"{least} to {given.max_instances}", models, machine.most_memory)
    picture = _picture(f"{name}: {least} to {given.max_instances} instances", models)
    (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    if name != "zipf":  # what the highest load needs, all the time
        fixed = msgspec.structs.replace(rules, least=given.max_instances)
        machine = Machine(shape, setting._replace(rules=fixed))
        _print(name, f"{given.max_instances} fixed", machine.run(), machine.most_memory)


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
    cost, costs = 0.0, []
    for (before, count), (at, _) in zip(instances, instances[1:]):
        cost += count * (at - before)
        costs.append((at, cost))
    return plot.svg(
        title,
        [
            plot.Panel("requests per second", [plot.Line("came", rate)]),
            plot.Panel("instances", [plot.Line("that serve", instances, steps=True)]),
            plot.Panel("requests in the queue", [plot.Line("wait", waiting)]),
            plot.Panel("cost: instance-seconds", [plot.Line("so far", costs)]),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
