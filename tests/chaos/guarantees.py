"""The guarantees of a run, checked after it; and the faults that the command line names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Protocol

from chaos.run import Outcome


class Costs(Protocol):
    """The costs of a fault: a `Fault` of this folder, or of the fleet's."""

    @property
    def free(self) -> bool:
        """Return whether no request of the load may fail because of it, except as many as it `costs` each time."""

    @property
    def costs(self) -> int:
        """Return the number of requests that may fail each time."""


def chosen(parser: argparse.ArgumentParser, names: str, faults: Iterable[str]) -> list[str]:
    """Return the faults that a command line names, separated by commas; by default, all."""
    there = list(faults)
    wanted = names.split(",") if names else there
    unknown = set(wanted) - set(there)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(there)}")
    return wanted


def judged(outcome: Outcome, faults: Mapping[str, Costs]) -> int:
    """Print the violated guarantees; return the exit status of the program."""
    problems = violated_guarantees(outcome, faults)
    for problem in problems:
        print(f"BROKEN: {problem}")
    return 1 if problems else 0


def violated_guarantees(outcome: Outcome, faults: Mapping[str, Costs]) -> list[str]:
    """Return the violations: responses wrong or lost, errors without a reason, unexpected errors, leaks."""
    problems = [f"leak: {leak}" for leak in outcome.leaks]
    problems += [f"the run ended early: {outcome.abort}"] if outcome.abort else []
    for name, one in outcome.ledger.accounts.items():
        counts = {"wrong": one.wrong, "lost": one.lost, "unclear": one.unclear}
        problems += [f"{name}: {count} {what}" for what, count in counts.items() if count]
        allowed = faults[name].costs * one.injected if name in faults else 0
        if one.failed > allowed and (name not in faults or faults[name].free):
            problems.append(f"{name}: {one.failed} requests failed, {allowed or 'none'} may")
    return problems
