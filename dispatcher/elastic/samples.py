"""The observed load of a model: samples, a window of them, and the figures that follow.

A sample says what happened since the one before it, so sums over a window need no counters that never go back:
tritonserver's own begin at zero whenever a model is loaded anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """The load of one model since the sample before.

    Attributes:
        at: when it was taken, in seconds of a clock that only goes forward
        elapsed_s: since the sample before
        instances: that could serve
        busy: instances that had work, on average over that time
        waiting: requests in Triton's queue, on average over that time
        requests: that workers began
        batches: that workers began
        queued_s: what requests that were answered had waited in Triton's queue, summed
        computed_s: what they had then taken, summed
    """

    at: float
    elapsed_s: float
    instances: int
    busy: float
    waiting: float = 0.0
    requests: int = 0
    batches: int = 0
    queued_s: float = 0.0
    computed_s: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing was asked of the model."""
        return self.busy == 0 and self.waiting == 0 and self.requests == 0


class Figures(NamedTuple):
    """A window of samples in a few numbers.

    Attributes:
        busy: instances that had work, on average
        share: of the instances, those that had work; 0.0 to 1.0
        waiting: batches that waited, on average: requests by the size that batches have
        batch_s: what a batch takes
        queue_ms: what a request waited in Triton's queue, on average
        compute_ms: what it took then
    """

    busy: float
    share: float
    waiting: float
    batch_s: float
    queue_ms: float
    compute_ms: float


def figures(samples: Sequence[Sample]) -> Figures:
    """Return the figures of some samples; there is at least one."""
    elapsed = sum(one.elapsed_s for one in samples) or 1.0
    work = sum(one.busy * one.elapsed_s for one in samples)
    places = sum(one.instances * one.elapsed_s for one in samples)
    requests = sum(one.requests for one in samples)
    batches = sum(one.batches for one in samples)
    waiting = sum(one.waiting * one.elapsed_s for one in samples) / elapsed
    per_batch = max(1.0, requests / batches) if batches else 1.0
    return Figures(
        busy=work / elapsed,
        share=work / places if places else 0.0,
        waiting=waiting / per_batch,
        batch_s=work / max(1, batches),
        queue_ms=1000 * sum(one.queued_s for one in samples) / max(1, requests),
        compute_ms=1000 * sum(one.computed_s for one in samples) / max(1, requests),
    )


class Window:
    """The samples of one model that a decision may need, and what they cannot say.

    Args:
        span_s: how far back they go

    Attributes:
        changed_at: when its number of instances last changed: what was seen before says little of what is
        idle_since: since when nothing has been asked of it; None: something was
    """

    def __init__(self, span_s: float) -> None:
        self.changed_at = float("-inf")
        self.idle_since: float | None = None
        self._span_s = span_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Take a sample, and forget those that are too old."""
        if not sample.idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = sample.at - sample.elapsed_s
        self._samples.append(sample)
        while self._samples[0].at <= sample.at - self._span_s:
            self._samples.popleft()

    def since(self, at: float) -> list[Sample]:
        """Return the samples that were taken after a moment, oldest first."""
        newest_first: list[Sample] = []
        for sample in reversed(self._samples):
            if sample.at - sample.elapsed_s / 2 < at:
                break
            newest_first.append(sample)
        return newest_first[::-1]
