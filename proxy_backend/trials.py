"""Which requests of a batch are tried now: all of them; after a worker was lost with them, each by itself.

    requests   [ answered … | tried now | … not tried by themselves yet ]
                0           done        end                              count

A worker that is lost, or hangs, may be so by one of the requests. Tried by itself, that one fails alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytriton.ipc import messages


@dataclass
class Trial:
    """How far a batch of `count` requests is.

    Attributes:
        done: the first so many have been answered.
        end: those from there to here are tried now.
        apart: each is tried by itself.
        losses: workers that were lost with those that are tried now.
        in_row: requests tried by themselves that lost one, since the last that was answered.
        taken_ns: when tritonserver handed the batch over (CLOCK_MONOTONIC).
    """

    count: int
    done: int = 0
    end: int = 0
    apart: bool = False
    losses: int = 0
    in_row: int = 0
    taken_ns: int = 0

    def __post_init__(self) -> None:
        self.end = self.count

    def next(self) -> slice | None:
        """Return which requests are to be tried now; None when all have been answered."""
        if self.done == self.count:
            return None
        if self.done == self.end:  # the next one by itself: it was lost with the others once
            self.end += 1
            self.losses = 1
        return slice(self.done, self.end)

    def answered(self, *, failed: bool = False, whole: bool = False) -> int:
        """Those that were tried have their answers, with `whole` all that are left; return how many they are."""
        if not failed:
            self.in_row = 0
        before, self.done = self.done, self.count if whole else self.end
        return self.done - before

    def lost(self, verdict: messages.Verdict) -> bool:
        """Those that were tried have lost a worker, and this becomes of them; whether they are tried again."""
        self.in_row += self.apart
        if verdict.action == "fail":
            return False
        self.apart = True
        self.end = self.done + 1
        return True

    def facts(self) -> dict[str, Any]:
        """Return what the dispatcher is told when it is asked what becomes of those that are tried."""
        in_row = self.in_row + 1 if self.apart else 0
        return {"losses": self.losses, "requests": self.end - self.done, "in_row": in_row}
