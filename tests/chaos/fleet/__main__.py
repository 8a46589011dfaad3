"""The command behind `scripts/tools/fleet-chaos`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from operator import ge
from pathlib import Path

from support.ray_nodes import loopback_up, until

from chaos.fleet.faults import FAULTS
from chaos.fleet.target import INSTANCES, Target, serving
from chaos.guarantees import chosen, judged
from chaos.ledger import RequestLedger
from chaos.load import AskError, HttpAsker, Load, NoAnswer
from chaos.models import right_answer
from chaos.run import Outcome
from chaos.table import table

#: Requests that have to be answered between two faults.
_BETWEEN = 60


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
            until(lambda: _is_served(target), "the balancer answers for all models")
            load = Load(target.http, target.grpc, ledger, clients, INSTANCES)
            load.start()
            try:
                _break(target, load, seconds, names, chance, outcome)
            except Exception as error:  # the table shows what has happened so far
                traceback.print_exc()
                outcome.abort = f"{type(error).__name__}: {error}"
            finally:
                load.stop()
    return outcome


def _break(
    target: Target, load: Load, seconds: float, names: Sequence[str], chance: random.Random, outcome: Outcome
) -> None:  # fmt: skip
    _answered(target.ledger, load)
    begun = time.monotonic()
    while not _over(begun, seconds, names, target.ledger):
        for name in chance.sample(list(names), len(names)):
            _inject(name, target, load, chance)
            if _over(begun, seconds, names, target.ledger):
                break
    outcome.seconds = time.monotonic() - begun


def _is_served(target: Target) -> bool:
    asker = HttpAsker(target.http)
    try:
        return all(asker.ask(name, 1) == right_answer(name, 1) for name in INSTANCES)
    except (AskError, NoAnswer):
        return False
    finally:
        asker.close()


def _over(begun: float, seconds: float, names: Sequence[str], ledger: RequestLedger) -> bool:
    return time.monotonic() - begun > seconds and set(names) <= set(ledger.accounts)


def _inject(name: str, target: Target, load: Load, chance: random.Random) -> None:
    print(f"{time.strftime('%X')} {name}", file=sys.stderr, flush=True)
    target.ledger.begin(name)
    FAULTS[name].inject(target, chance)
    target.recovered()
    target.ledger.recovered()
    _answered(target.ledger, load)


def _answered(ledger: RequestLedger, load: Load) -> None:
    """Wait for some responses, and for one of each client: requests in flight belong to the previous fault."""
    wanted = ledger.answered() + _BETWEEN
    rounds = [ended + 2 for ended in load.ended]
    until(
        lambda: ledger.answered() >= wanted and all(map(ge, load.ended, rounds)),
        "requests are answered",
    )


if __name__ == "__main__":
    sys.exit(main())
