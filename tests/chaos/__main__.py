"""The command behind `scripts/tools/chaos`."""

from __future__ import annotations

import argparse
import os
import sys

from support.task_groups import mount

from chaos.faults import FAULTS
from chaos.guarantees import chosen, judged
from chaos.run import run
from chaos.table import table


def main() -> int:
    """Run what the command line says and print the table; return 1 if a guarantee was violated."""
    parser = argparse.ArgumentParser(
        prog="scripts/tools/chaos", description="Faults: " + ", ".join(FAULTS)
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults (default: 1)")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--clients", type=int, default=6, help="that ask at once (default: 6)")
    parser.add_argument("--faults", default="", help="only these, with commas between them")
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="with models that scale, are suspended, and share a budget",
    )
    given = parser.parse_args()
    names = chosen(parser, given.faults, FAULTS)
    if "fill-shm" in names and not os.environ.get("CHAOS_OWN_SHM"):
        print("fill-shm is left out: it takes a mount namespace of its own, so root")
        names.remove("fill-shm")
    if "limit-tasks" in names and mount() is None:
        print("limit-tasks is left out: it takes a control group of its own, so root")
        names.remove("limit-tasks")
    outcome = run(given.seed, given.seconds, names, given.clients, elastic=given.elastic)
    print(table(outcome))
    if given.elastic:
        print(f"{outcome.memory_suspended} models suspended for others (the last daemon)")
    return judged(outcome, FAULTS)


if __name__ == "__main__":
    sys.exit(main())
