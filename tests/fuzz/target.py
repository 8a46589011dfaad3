"""The interface of a fuzzed target, and its findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fuzz.values import Maker


class Finding(Exception):
    """A target did what it must not, in one of `cases`."""

    def __init__(self, text: str, cases: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.cases = cases


@dataclass
class Tally:
    """Counts of cases: accepted and carried out, or refused in an orderly way."""

    accepted: int = 0
    refused: int = 0

    def add(self, accepted: bool) -> None:
        """Count one case."""
        self.accepted += accepted
        self.refused += not accepted


class Target(ABC):
    """One thing that is fuzzed."""

    name: str
    #: Share of all cases.
    share: float
    #: Cases between two checks.
    block: int

    @abstractmethod
    def run(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        """Run a block of cases.

        Raises:
            Finding: one of them did harm
        """

    def check(self) -> None:
        """Check after a block that the target is unharmed.

        Raises:
            Finding: it is not
        """

    def close(self) -> None:
        """Release the target's resources."""


class Function(Target):
    """An in-process target: a function that must raise only the exceptions that it declares."""

    block = 10_000

    def run(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        """Run each case by itself."""
        for case in cases:
            try:
                tally.add(self.case(Maker(seed, self.name, case)))
            except Exception as error:
                raise Finding(f"{type(error).__name__}: {error}", [case]) from error

    @abstractmethod
    def case(self, maker: Maker) -> bool:
        """Run one case; return whether it was accepted. Any exception is a finding."""
