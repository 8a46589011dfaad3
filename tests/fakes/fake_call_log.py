"""A call log that records what a model reported."""

from __future__ import annotations

from pytriton.worker.request_log import CallLog


class FakeCallLog(CallLog):
    """`failures`: the kinds of failures and their numbers of requests; `traces`: trace ids."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, int]] = []
        self.traces: list[str] = []

    def failed(self, kind: str, requests: int, error: BaseException | None = None) -> None:
        self.failures.append((kind, requests))

    def traced(self, trace: str) -> None:
        self.traces.append(trace)
