"""Exemplars: the last traced call of each bucket of a histogram, told by a worker in its gauge's memory.

For each bucket, 8 bytes each::

    [ when, since the epoch; 0: there is none ][ how long ][ trace id: high ][ low ]

Times are nanoseconds. The worker writes when a traced call ends; all other calls cost nothing. The reader takes no
lock: what changes while it reads is not told.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import NamedTuple

from pytriton._protocol.lanes.histograms import BOUNDS_NS, DURATION_BUCKETS

_WORDS = 4
_AT, _TOOK, _HIGH, _LOW = range(_WORDS)
#: Bytes that it takes.
SIZE = DURATION_BUCKETS * _WORDS * 8
#: Of a trace id, in hexadecimal.
_DIGITS = 32
_HALF = (1 << 64) - 1
#: Later than any date.
_MOST_NS = 1 << 62


class Exemplar(NamedTuple):
    """One call: how long it took, which trace it was part of (32 digits), and when it ended, since the epoch."""

    seconds: float
    trace: str
    at: float


class Exemplars:
    """One end of the memory: `note` is for the worker, `read` for the dispatcher."""

    def __init__(self, memory: memoryview) -> None:
        """Take over a view of `SIZE` bytes."""
        self._memory = memory
        self._words = memory.cast("Q")

    def note(self, trace: str, took_ns: int) -> None:
        """A call of that trace has taken so long; what is no trace id is no exemplar."""
        try:
            number = int(trace, 16)
        except ValueError:
            return
        if len(trace) != _DIGITS or number <= 0 or took_ns < 0:
            return
        words, at = self._words, _WORDS * bisect_left(BOUNDS_NS, took_ns)
        words[at + _AT] = 0
        words[at + _TOOK] = took_ns
        words[at + _HIGH] = number >> 64
        words[at + _LOW] = number & _HALF
        words[at + _AT] = time.time_ns()

    def read(self) -> list[Exemplar]:
        """Return those that there are, the shortest call first."""
        words = self._words.tolist()
        found = []
        for at in range(0, len(words), _WORDS):
            when_ns, took_ns, high, low = words[at : at + _WORDS]
            # The worker may have written meanwhile, or anything.
            whole = 0 < when_ns < _MOST_NS and self._words[at + _AT] == when_ns
            if whole and took_ns < _MOST_NS and bisect_left(BOUNDS_NS, took_ns) * _WORDS == at:
                trace = f"{high << 64 | low:032x}"
                found.append(Exemplar(took_ns / 1e9, trace, when_ns / 1e9))
        return found

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory.release()
