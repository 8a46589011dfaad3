"""What a run of faults must not do, said after it; and which faults the command line names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Protocol

from chaos.run import Outcome


class Costs(Protocol):
    """What a fault may cost: a `Fault` of this folder, or of the fleet's."""

    @property
    def free(self) -> bool:
        """No request of the load may fail because of it, but for as many as it `costs` each time."""

    @property
    def costs(self) -> int:
        """How many."""


def chosen(parser: argparse.ArgumentParser, names: str, faults: Iterable[str]) -> list[str]:
    """Return the faults that a command line names, with commas between them; all where it names none."""
    there = list(faults)
    wanted = names.split(",") if names else there
    unknown = set(wanted) - set(there)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(there)}")
    return wanted


def judged(outcome: Outcome, faults: Mapping[str, Costs]) -> int:
    """Print the promises that were broken; return the program's exit status."""
    problems = violated_guarantees(outcome, faults)
    for problem in problems:
        print(f"BROKEN: {problem}")
    return 1 if problems else 0


def violated_guarantees(outcome: Outcome, faults: Mapping[str, Costs]) -> list[str]:
    """Say what must not be: answers wrong or lost, errors that say nothing, errors where none may be, leaks."""
    problems = [f"leak: {leak}" for leak in outcome.leaks]
    for name, one in outcome.ledger.accounts.items():
        counts = {"wrong": one.wrong, "lost": one.lost, "unclear": one.unclear}
        problems += [f"{name}: {count} {what}" for what, count in counts.items() if count]
        allowed = faults[name].costs * one.injected if name in faults else 0
        if one.failed > allowed and (name not in faults or faults[name].free):
            problems.append(f"{name}: {one.failed} requests failed, {allowed or 'none'} may")
    return problems
