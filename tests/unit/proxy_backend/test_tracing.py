"""Which requests of a batch tritonserver traces."""

from __future__ import annotations

import time

from fakes.triton.fake_stub import Request

from pytriton.proxy_backend.tracing import trace_of


def test_every_request_has_its_context_or_none() -> None:
    begun_ns = time.time_ns()
    trace = trace_of([Request(context='{"traceparent": "a"}'), Request()])
    assert trace is not None
    assert trace.contexts == ['{"traceparent": "a"}', ""]
    assert begun_ns <= trace.begun_ns <= time.time_ns()


def test_a_batch_that_nobody_traces_has_no_trace() -> None:
    assert trace_of([Request(), Request()]) is None
