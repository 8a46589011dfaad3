"""The command behind `scripts/tools/attack-frontend`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from attacks import aggregate_attacks, grpc_attacks, http_attacks, slow_attacks, typed_attacks
from attacks.attack import Attack
from attacks.target import Row, attacked_target

ATTACKS: dict[str, Attack] = {
    **http_attacks.ATTACKS,
    **slow_attacks.ATTACKS,
    **grpc_attacks.ATTACKS,
    **aggregate_attacks.ATTACKS,
    **typed_attacks.ATTACKS,
}
_USUAL = {"connections": 200, "streams": 1000, "calls": 5000}
_FULL = {"connections": 10_000, "streams": 100_000, "calls": 500_000}


def main() -> int:
    """Run the attacks of the command line and print a table; return 1 if one did harm."""
    parser = argparse.ArgumentParser(
        prog="scripts/tools/attack-frontend", description=f"Kinds: {', '.join(ATTACKS)}"
    )
    parser.add_argument(
        "--full", action="store_true", help=f"as many as it takes to be sure: {_FULL}"
    )
    for what, usual in _USUAL.items():
        parser.add_argument(f"--{what}", type=int, help=f"of each kind (default: {usual})")
    parser.add_argument("--only", action="append", choices=ATTACKS, default=[], help="this kind")
    given = parser.parse_args()
    counts = {
        what: getattr(given, what) or (_FULL if given.full else _USUAL)[what] for what in _USUAL
    }
    rows = attack(given.only or list(ATTACKS), counts)
    return 1 if any(row.problems for row in rows) else 0


def attack(names: list[str], counts: Mapping[str, int], **limits: float) -> list[Row]:
    """Attack a daemon in each of those ways, one after the other; print a row for each."""
    rows = []
    print(_HEAD)
    with attacked_target(**limits) as target:
        for name in names:
            rows.append(target.attack(name, ATTACKS[name], counts[ATTACKS[name].counts]))
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
