"""The command behind `scripts/tools/fuzz`."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from typing import NoReturn

from fuzz.runner import NAMES, fuzz, table

#: No process of a run may take more: a finding must not cost the machine its memory.
_MAX_BYTES = 4 << 30


def _stopped(number: int, frame: object) -> NoReturn:
    """Unwind on SIGTERM, so that the daemon ends with the run."""
    sys.exit(128 + number)


def main() -> int:
    """Run what the command line says; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="scripts/tools/fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000, help="in all (default: 1000000)")
    parser.add_argument("--seed", type=int, default=1, help="of every case (default: 1)")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first case (default: 0)"
    )
    parser.add_argument("--only", action="append", choices=NAMES, default=[], help="this target")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _stopped)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # the daemon inherits it
    rows = fuzz(given.seed, given.cases, given.only, given.first)
    print(table(rows))
    return 1 if any(row.finding for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
