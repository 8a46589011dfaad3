"""The attempts to serve a batch: first all its requests together; after a worker was lost with them, individually.

    requests   [ answered … | tried now | … not yet tried individually ]
                0           done        end                            count

One of the requests may have ended the worker, or may make it hang. Retried individually, that request fails alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytriton._protocol import messages


@dataclass
class BatchAttempts:
    """The progress of a batch of `count` requests.

    Attributes:
        done: number of answered requests, from the first on.
        end: the requests from `done` to here are being tried.
        apart: each request is tried individually.
        losses: workers that were lost with the requests being tried.
        in_row: individually tried requests that lost a worker since the last answer.
        taken_ns: when tritonserver passed the batch to the backend (CLOCK_MONOTONIC).
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
        """Return the requests to try now; None when all have been answered."""
        if self.done == self.count:
            return None
        if self.done == self.end:  # the next one individually: it was lost with the others once
            self.end += 1
            self.losses = 1
        return slice(self.done, self.end)

    def answered(self, *, failed: bool = False, whole: bool = False) -> int:
        """Mark the requests that were tried as answered, with `whole` all remaining ones; return their number."""
        if not failed:
            self.in_row = 0
        before, self.done = self.done, self.count if whole else self.end
        return self.done - before

    def lost(self, verdict: messages.Verdict) -> bool:
        """Apply the verdict about requests that lost a worker; return whether they are retried."""
        self.in_row += self.apart
        if verdict.action == "fail":
            return False
        self.apart = True
        self.end = self.done + 1
        return True

    def facts(self) -> dict[str, Any]:
        """Return the facts for the dispatcher's verdict about the requests that were tried."""
        in_row = self.in_row + 1 if self.apart else 0
        return {"losses": self.losses, "requests": self.end - self.done, "in_row": in_row}
