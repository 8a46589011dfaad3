"""tritonserver's own metrics, fetched over HTTP with a short timeout, and the queue statistics in them."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import psutil
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pytriton._protocol.messages.metrics import QueueMetrics

_TIMEOUT_S = 2.0
_MAX_BYTES = 32 << 20
_PENDING = "nv_inference_pending_request_count"
#: Metric of tritonserver -> field of QueueMetrics, and factor to the unit of that field.
_FIELDS = {
    _PENDING: ("pending", 1),
    "nv_inference_request_success": ("succeeded", 1),
    "nv_inference_request_failure": ("failed", 1),
    "nv_inference_queue_duration_us": ("queue_s", 1e-6),
    "nv_inference_request_duration_us": ("request_s", 1e-6),
}
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str) -> str:
    """Fetch tritonserver's metrics as text; "" if it serves none or does not answer in time. Blocks."""
    if not url:
        return ""
    try:
        with _direct.open(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_MAX_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):  # tritonserver is starting or exiting, or hangs
        return ""


@dataclass(frozen=True)
class TritonMetrics:
    """Metrics of tritonserver.

    Attributes:
        text: original text; "" if tritonserver did not answer
        families: parsed metrics
        queues: queue statistics, by model
        since: start time of the counters, in seconds since the epoch; None if tritonserver was replaced during the
            request
    """

    text: str = ""
    families: tuple[Metric, ...] = ()
    queues: Mapping[str, list[QueueMetrics]] = field(default_factory=dict)
    since: Optional[float] = 0.0


def read(url: str, process: Callable[[], Optional[int]]) -> TritonMetrics:
    """Fetch and parse the metrics of tritonserver. Blocks.

    Args:
        url: URL of the metrics; "" if tritonserver serves none
        process: returns tritonserver's pid; None during a replacement
    """
    pid = process()
    metrics = parsed(fetch(url))
    if pid is None or process() != pid:
        return replace(metrics, since=None)
    return replace(metrics, since=_started_at(pid))


def _started_at(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:  # it has exited
        return None


def parsed(text: str) -> TritonMetrics:
    """Parse the text of tritonserver's metrics. If that fails, the result contains only the text."""
    try:
        families = tuple(text_string_to_metric_families(text))
    except ValueError:  # the text was truncated
        families = ()
    return TritonMetrics(text, families, _queues(families))


def openmetrics(metrics: TritonMetrics) -> Iterator[Metric]:
    """Yield tritonserver's metrics under their original names, in a form that is valid in OpenMetrics.

    OpenMetrics requires names of counters to end with `_total`. Counters with other names are exposed without a type.
    """
    for family in metrics.families:
        if family.type == "counter" and f"# TYPE {family.name}_total " not in metrics.text:
            untyped = Metric(family.name, family.documentation, "unknown")
            untyped.samples = [
                sample._replace(name=sample.name[: -len("_total")])
                if sample.name == f"{family.name}_total"
                else sample
                for sample in family.samples
            ]
            yield untyped
        else:
            yield family


def waiting_at(url: str) -> dict[str, int]:
    """Fetch the number of requests that are waiting in tritonserver's queue, by model. Blocks."""
    return waiting(fetch(url))


def waiting(text: str) -> dict[str, int]:
    """Extract the number of waiting requests from the text of tritonserver's metrics, by model."""
    lines = (line for line in text.splitlines(keepends=True) if line.startswith(_PENDING))
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families("".join(lines)):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            counts[model] = counts.get(model, 0) + int(sample.value)
    return counts


def _queues(families: Iterable[Metric]) -> dict[str, list[QueueMetrics]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for family in families:
        for sample in family.samples:
            name, unit = _FIELDS.get(family.name, ("", 1))
            version = sample.labels.get("version", "")
            if not name or not version.isdecimal():
                continue
            values = found.setdefault((sample.labels.get("model", ""), int(version)), {})
            value = sample.value * unit
            # Failures are counted by reason, so add them up.
            values[name] = values.get(name, 0) + (value if name.endswith("_s") else int(value))
    by_model: dict[str, list[QueueMetrics]] = {}
    for (model, number), queue in sorted(found.items()):
        by_model.setdefault(model, []).append(QueueMetrics(number, **queue))
    return by_model
