"""The observed load of a model: samples, a window of samples, and figures computed from them.

A sample covers the time since the previous one. So sums over a window do not depend on monotonic counters:
tritonserver's counters restart at zero whenever a model is reloaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """The load of one model since the previous sample.

    Attributes:
        at: When it was taken, in seconds of a monotonic clock.
        elapsed_s: Time since the previous sample.
        instances: Number of instances that could serve.
        busy: Average number of busy instances.
        waiting: Average number of requests in Triton's queue.
        requests: Number of requests that workers started.
        batches: Number of batches that workers started.
        queued_s: Total time that the answered requests had waited in Triton's queue.
        computed_s: Total time that they took to compute.
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
        """Whether the model had no requests."""
        return self.busy == 0 and self.waiting == 0 and self.requests == 0


class SampleStats(NamedTuple):
    """Key figures of a series of samples.

    Attributes:
        busy: Average number of busy instances.
        share: Share of the instances that were busy, 0.0 to 1.0.
        waiting: Average number of waiting batches: waiting requests divided by the batch size.
        batch_s: Average duration of a batch.
        queue_ms: Average time of a request in Triton's queue.
        compute_ms: Average time to compute a request.
    """

    busy: float
    share: float
    waiting: float
    batch_s: float
    queue_ms: float
    compute_ms: float


def figures(samples: Sequence[Sample]) -> SampleStats:
    """Compute the figures of one or more samples."""
    elapsed = sum(one.elapsed_s for one in samples) or 1.0
    work = sum(one.busy * one.elapsed_s for one in samples)
    places = sum(one.instances * one.elapsed_s for one in samples)
    requests = sum(one.requests for one in samples)
    batches = sum(one.batches for one in samples)
    waiting = sum(one.waiting * one.elapsed_s for one in samples) / elapsed
    per_batch = max(1.0, requests / batches) if batches else 1.0
    return SampleStats(
        busy=work / elapsed,
        share=work / places if places else 0.0,
        waiting=waiting / per_batch,
        batch_s=work / max(1, batches),
        queue_ms=1000 * sum(one.queued_s for one in samples) / max(1, requests),
        compute_ms=1000 * sum(one.computed_s for one in samples) / max(1, requests),
    )


class Window:
    """The recent samples of one model, and when it last changed or became idle.

    Args:
        span_s: How long samples are kept, in seconds.

    Attributes:
        changed_at: When the number of instances last changed. Earlier samples say little about the current load.
        idle_since: Start of the current period without requests; None if the last sample had requests.
    """

    def __init__(self, span_s: float) -> None:
        self.changed_at = float("-inf")
        self.idle_since: float | None = None
        self._span_s = span_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Add a sample, and drop samples that are too old."""
        if not sample.idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = sample.at - sample.elapsed_s
        self._samples.append(sample)
        while self._samples[0].at <= sample.at - self._span_s:
            self._samples.popleft()

    def since(self, at: float) -> list[Sample]:
        """Return the samples taken after `at`, oldest first."""
        newest_first: list[Sample] = []
        for sample in reversed(self._samples):
            if sample.at - sample.elapsed_s / 2 < at:
                break
            newest_first.append(sample)
        return newest_first[::-1]
