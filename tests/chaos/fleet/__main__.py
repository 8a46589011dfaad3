"""The command behind `scripts/tools/fleet-chaos`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from support.ray_nodes import loopback_up, until

from chaos.fleet.faults import FAULTS
from chaos.fleet.target import INSTANCES, Target, serving
from chaos.guarantees import chosen, judged
from chaos.ledger import RequestLedger
from chaos.load import AskError, HttpAsker, Load, NoAnswer
from chaos.models import right_answer
from chaos.run import Outcome, inject_all
from chaos.table import table


def main() -> int:
    """Run what the command line says and print the table; return 1 if a guarantee was violated."""
    parser = argparse.ArgumentParser(
        prog="scripts/tools/fleet-chaos", description="Faults: " + ", ".join(FAULTS)
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults (1)")
    parser.add_argument("--seconds", type=float, default=180, help="how long (180)")
    parser.add_argument("--clients", type=int, default=4, help="that ask at once (4)")
    parser.add_argument("--faults", default="", help="only these, with commas between them")
    given = parser.parse_args()
    names = chosen(parser, given.faults, FAULTS)
    if not os.environ.get("RUNS_APART"):
        parser.error(
            "it takes a network namespace of its own: run scripts/tools/fleet-chaos as root, or allow them"
        )
    loopback_up()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    outcome = _run(given.seed, given.seconds, names, given.clients)
    print(table(outcome))
    return judged(outcome, FAULTS)


def _run(seed: int, seconds: float, names: Sequence[str], clients: int) -> Outcome:
    chance = random.Random(seed)
    ledger = RequestLedger()
    outcome = Outcome(ledger)
    with tempfile.TemporaryDirectory(prefix="ptf-") as folder:  # noqa: SIM117
        with serving(Path(folder), ledger, outcome.leaks) as target:

            def inject(name: str) -> None:
                FAULTS[name].inject(target, chance)
                target.recovered()

            until(lambda: _is_served(target), "the balancer answers for all models")
            load = Load(target.http, target.grpc, ledger, clients, INSTANCES)
            load.start()
            try:
                outcome.seconds = inject_all(inject, names, ledger, load, seconds, chance)
            except Exception as error:  # the table shows what has happened so far
                traceback.print_exc()
                outcome.abort = f"{type(error).__name__}: {error}"
            finally:
                load.stop()
    return outcome


def _is_served(target: Target) -> bool:
    asker = HttpAsker(target.http)
    try:
        return all(asker.ask(name, 1) == right_answer(name, 1) for name in INSTANCES)
    except (AskError, NoAnswer):
        return False
    finally:
        asker.close()


if __name__ == "__main__":
    sys.exit(main())
