"""The command line of scripts/bench."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import (
    counter_cost,
    footprint,
    machine,
    openai_api,
    runner,
    runner_overhead,
    sockets,
    workloads,
)
from benchmarks import systems as all_systems
from benchmarks.reporting import figures, report
from benchmarks.systems import System

sys.path.insert(0, str(Path(__file__).parent / "servers"))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure pytriton-daemon and other model servers, interleaved in one run.",
        epilog="systems: " + ", ".join(one.name for one in all_systems.SYSTEMS)
        + "; workloads: "
        + ", ".join(f"{one.key} ({one.title})" for one in workloads.WORKLOADS)
        + "".join(f", {name} ({title})" for name, title in workloads.EXTRAS.items()),
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="a few minutes: fewer clients, rounds and seconds")
    add("--systems", help="e.g. ours,nvidia-pytriton (default: all)")
    add(
        "--workloads",
        help="letters or keys, e.g. A,C2,footprint (default: all; with --quick all but models, models100, openai, sockets and typed)",
    )
    add(
        "--counters",
        action="store_true",
        help="only measure what counters cost a worker, in nanoseconds per batch (a few seconds)",
    )
    add("--rounds", type=int, help="default: 5, with --quick 2")
    add("--seconds", type=float, help="duration of each measurement; default: 4, with --quick 1")
    add("--out", type=Path, help="folder for results (default: build/bench/<time>)")
    args = parser.parse_args(arguments)
    for name in ("rounds", "seconds"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            parser.error(f"--{name}: must be more than 0, not {value:g}")
    return args


def main() -> int:
    """Run the benchmark. Return 0 if every row was measured without errors, 1 if not, 2 for wrong arguments."""
    args = parse()
    if args.counters:
        print("\n".join(counter_cost.lines()))
        return 0
    try:
        chosen = all_systems.select(args.systems)
        loads, extras = workloads.split(args.workloads, args.quick)
    except ValueError as error:
        print(f"[bench] error: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = runner.Plan(
        rounds=args.rounds or (2 if args.quick else 5),
        seconds=args.seconds or (1.0 if args.quick else 4.0),
        quick=args.quick,
    )
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    out = args.out or Path(__file__).parents[3] / "build" / "bench" / stamp
    out.mkdir(parents=True, exist_ok=True)
    return measure(chosen, loads, plan, out, extras)


def measure(
    chosen: list[System],
    loads: list[workloads.Workload],
    plan: runner.Plan,
    out: Path,
    extras: set[str],
) -> int:
    """Install, measure and report. After Ctrl-C, report what was measured so far."""
    import work

    recorder = runner.Recorder()
    chosen = all_systems.needed(chosen, loads, extras)
    versions = runner.install(chosen, recorder)
    chosen = [one for one in chosen if one.name in versions]
    spins = any(one.model.work == "spin" for one in loads)
    turns = work.turns_for(0.005) if spins else 0
    results: dict[str, Any] = {
        "meta": {**machine.facts(), "versions": versions, "spin_turns": turns, "plan": vars(plan)},
        "notes": {one.name: one.note for one in chosen},
        "titles": {one.name: one.title for one in chosen},
        "workloads": {one.key: one.title for one in loads},
        "measurements": recorder.measurements,
        "footprint": recorder.figures,
        "skipped": recorder.skipped,
        "missing": recorder.missing,
    }
    code = 0
    try:
        for workload in loads:
            load = workloads.calibrated(workload, turns)
            runner.measure_workload(load, chosen, plan, recorder)
        measure_extras(extras, chosen, plan, recorder)
    except KeyboardInterrupt:
        print("[bench] interrupted: reporting what was measured", file=sys.stderr)
        code = 130
    report.write(results, out)
    if recorder.missing:
        print(
            f"[bench] error: {len(recorder.missing)} rows are missing (see above)", file=sys.stderr
        )
    wrong = any(figures.errors(one) for one in recorder.measurements)
    return code or int(wrong or bool(recorder.missing))


def measure_extras(
    extras: set[str],
    chosen: list[System],
    plan: runner.Plan,
    recorder: runner.Recorder,
) -> None:
    """Measure what is not a load on every system."""
    if "runner" in extras and any(one.name == "ours" for one in chosen):
        runner_overhead.measure(plan.quick, recorder)
    if "footprint" in extras:
        footprint.measure(chosen, 1 if plan.quick else 3, recorder)
    if "sockets" in extras:
        sockets.measure(chosen, plan.quick, recorder)
    if "openai" in extras:
        openai_api.measure(chosen, plan.rounds, plan.seconds, plan.quick, recorder)
    if "models100" in extras:
        footprint.measure_many(chosen, recorder)


if __name__ == "__main__":
    raise SystemExit(main())
