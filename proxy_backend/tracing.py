"""The trace contexts of a batch's requests, which are the parents of the worker's spans (OpenTelemetry).

Reading them costs some microseconds per request. So the proxy reads them only if the dispatcher reports that
tritonserver traces with OpenTelemetry (`Attached.tracing`): its trace mode cannot change while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pytriton._protocol.lanes.lane_messages import BatchTrace


def trace_of(requests: Sequence[Any]) -> BatchTrace | None:
    """Return the traces of these stub requests; None if no request is traced."""
    begun_ns = time.time_ns()
    contexts = [request.trace().get_context() or "" for request in requests]
    return BatchTrace(begun_ns, contexts) if any(contexts) else None
