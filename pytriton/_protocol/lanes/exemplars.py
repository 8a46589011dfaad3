"""Exemplars: the last traced call in each bucket of a histogram, written by a worker to its stats page.

For each bucket, 8 bytes each::

    [ end time since the epoch; 0: none ][ duration ][ trace id: high ][ low ]

Times are nanoseconds. The worker writes when a traced call ends; other calls cost nothing. The reader takes no
lock: an entry that changes during the read is skipped.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import NamedTuple

from pytriton._protocol.lanes.histograms import BOUNDS_NS, DURATION_BUCKETS

_WORDS = 4
_AT, _TOOK, _HIGH, _LOW = range(_WORDS)
#: Size in bytes.
SIZE = DURATION_BUCKETS * _WORDS * 8
#: Length of a trace id, in hexadecimal digits.
_DIGITS = 32
_HALF = (1 << 64) - 1
#: Later than any valid date.
_MAX_NS = 1 << 62


class Exemplar(NamedTuple):
    """One call: its duration, its trace id (32 digits), and when it ended, since the epoch."""

    seconds: float
    trace: str
    at: float


class Exemplars:
    """One end of the memory. The worker calls `note`, the dispatcher `read`."""

    def __init__(self, memory: memoryview) -> None:
        """Take ownership of a view of `SIZE` bytes."""
        self._memory = memory
        self._words = memory.cast("Q")

    def note(self, trace: str, took_ns: int) -> None:
        """Record the duration of a call with that trace id. Invalid trace ids are ignored."""
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
        """Return the recorded exemplars, shortest call first."""
        words = self._words.tolist()
        found = []
        for at in range(0, len(words), _WORDS):
            when_ns, took_ns, high, low = words[at : at + _WORDS]
            # The worker may have overwritten it in the meantime, or written invalid data.
            whole = 0 < when_ns < _MAX_NS and self._words[at + _AT] == when_ns
            if whole and took_ns < _MAX_NS and bisect_left(BOUNDS_NS, took_ns) * _WORDS == at:
                trace = f"{high << 64 | low:032x}"
                found.append(Exemplar(took_ns / 1e9, trace, when_ns / 1e9))
        return found

    def close(self) -> None:
        """Release the memory."""
        self._words.release()
        self._memory.release()
