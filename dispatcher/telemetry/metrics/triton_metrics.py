"""tritonserver's own metrics, fetched with a short timeout, and its queue statistics."""

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
#: tritonserver's metric -> field of QueueMetrics, and factor to the field's unit.
_FIELDS = {
    _PENDING: ("pending", 1),
    "nv_inference_request_success": ("succeeded", 1),
    "nv_inference_request_failure": ("failed", 1),
    "nv_inference_queue_duration_us": ("queue_s", 1e-6),
    "nv_inference_request_duration_us": ("request_s", 1e-6),
}
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str) -> str:
    """Return tritonserver's metrics as text; "" if it does not answer in time or has no such endpoint. Blocks."""
    if not url:
        return ""
    try:
        with _direct.open(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_MAX_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):  # it is starting, exiting, or hangs
        return ""


@dataclass(frozen=True)
class TritonMetrics:
    """The metrics reported by tritonserver.

    Attributes:
        text: the original text; "" if there was no answer.
        families: the parsed metrics.
        queues: queue statistics by model.
        since: start of its counters (seconds since the epoch); None if unknown because tritonserver was replaced during
            the request.
    """

    text: str = ""
    families: tuple[Metric, ...] = ()
    queues: Mapping[str, list[QueueMetrics]] = field(default_factory=dict)
    since: Optional[float] = 0.0


def read(url: str, process: Callable[[], Optional[int]]) -> TritonMetrics:
    """Fetch the metrics of a tritonserver; blocks. `process` returns its pid, None during a replacement."""
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
    """Parse a text; if that fails, return only the text."""
    try:
        families = tuple(text_string_to_metric_families(text))
    except ValueError:  # the text was truncated
        families = ()
    return TritonMetrics(text, families, _queues(families))


def openmetrics(metrics: TritonMetrics) -> Iterator[Metric]:
    """Yield tritonserver's families in a form valid for OpenMetrics, under their original names.

    OpenMetrics requires counter names to end with `_total`; others are exposed without a type.
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
    """Return the number of requests waiting in a tritonserver's queues, by model; blocks."""
    return waiting(fetch(url))


def waiting(text: str) -> dict[str, int]:
    """Return the number of waiting requests by model from a metrics text; only these lines are parsed."""
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
            # Failures are split by reason.
            values[name] = values.get(name, 0) + (value if name.endswith("_s") else int(value))
    by_model: dict[str, list[QueueMetrics]] = {}
    for (model, number), queue in sorted(found.items()):
        by_model.setdefault(model, []).append(QueueMetrics(number, **queue))
    return by_model
