"""The command behind `scripts/attack-front`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from attacking import grpc_kinds, http_kinds, slow_kinds, total_kinds
from attacking.ground import Row, attacked_ground
from attacking.kind import Kind

KINDS: dict[str, Kind] = {
    **http_kinds.KINDS,
    **slow_kinds.KINDS,
    **grpc_kinds.KINDS,
    **total_kinds.KINDS,
}
_USUAL = {"connections": 200, "streams": 1000, "calls": 5000}
_FULL = {"connections": 10_000, "streams": 100_000, "calls": 500_000}


def main() -> int:
    """Attack as the command line says, print a table; 1 when something did harm."""
    parser = argparse.ArgumentParser(
        prog="scripts/attack-front", description=f"Kinds: {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--full", action="store_true", help=f"as many as it takes to be sure: {_FULL}"
    )
    for what, usual in _USUAL.items():
        parser.add_argument(f"--{what}", type=int, help=f"of each kind (default: {usual})")
    parser.add_argument("--only", action="append", choices=KINDS, default=[], help="this kind")
    given = parser.parse_args()
    counts = {
        what: getattr(given, what) or (_FULL if given.full else _USUAL)[what] for what in _USUAL
    }
    rows = attack(given.only or list(KINDS), counts)
    return 1 if any(row.problems for row in rows) else 0


def attack(names: list[str], counts: Mapping[str, int], **limits: float) -> list[Row]:
    """Attack a daemon in each of those ways, one after the other; print a row of each."""
    rows = []
    print(_HEAD)
    with attacked_ground(**limits) as ground:
        for name in names:
            rows.append(ground.attack(name, KINDS[name], counts[KINDS[name].counts]))
            print(
                line(rows[-1]),
                *(f"  BROKEN: {text}" for text in rows[-1].problems),
                sep="\n",
                flush=True,
            )
    return rows


_HEAD = (
    "| attack | how many | s | what came of them | crashes, hangs | health p99 / worst, ms | of it the machine | "
    "memory before → peak → after, MB | descriptors |\n|---|--:|--:|---|--:|--:|--:|--:|--:|"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    seen = ", ".join(f"{what}: {number:,}" for what, number in row.tally.seen.most_common(5))
    crashes = sum("crashed" in text for text in row.problems)
    health = row.health
    return (
        f"| {row.name} | {sum(row.tally.seen.values()):,} | {row.seconds:.1f} | {seen} | {crashes}, {row.tally.hung} "
        f"| {health.p99_ms:.1f} / {health.worst_ms:.0f} | {health.machine_p99_ms:.1f} / {health.machine_worst_ms:.0f} "
        f"| {row.before.memory_mb:.0f} → {row.peak_mb:.0f} → {row.after.memory_mb:.0f} "
        f"| {row.before.descriptors} → {row.after.descriptors} |"
    )


if __name__ == "__main__":
    sys.exit(main())
