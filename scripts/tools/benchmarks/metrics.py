"""Reads Triton's count of failed requests from its metrics endpoint."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from benchmarks.deployment import Deployment

#: Without those that a load generator cancelled by closing its connections after a measurement.
_FAILURES = re.compile(
    r'^nv_inference_request_failure\{(?!.*reason="CANCELED").*\} (\d+(?:\.\d+)?)$', re.MULTILINE
)


def failures(deployment: Deployment) -> int:
    """Return the failed requests of a Triton since its start; 0 for other systems."""
    try:
        url = f"http://127.0.0.1:{deployment.ports.metrics}/metrics"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(url, timeout=10) as response:
            text = response.read().decode()
    except (urllib.error.URLError, OSError):
        return 0
    return round(sum(float(count) for count in _FAILURES.findall(text)))
