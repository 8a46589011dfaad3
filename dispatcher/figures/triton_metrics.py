"""tritonserver's own metrics: fetched with a short time-out, and what they say of its queues."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pytriton.ipc.messages.figures import QueueFigures

_TIMEOUT_S = 2.0
_MOST_BYTES = 32 << 20
_PENDING = "nv_inference_pending_request_count"
#: Fields of QueueFigures by tritonserver's names, and what makes them the field's unit.
_FIELDS = {
    _PENDING: ("pending", 1),
    "nv_inference_request_success": ("succeeded", 1),
    "nv_inference_request_failure": ("failed", 1),
    "nv_inference_queue_duration_us": ("queue_s", 1e-6),
    "nv_inference_request_duration_us": ("request_s", 1e-6),
}
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str) -> str:
    """Return what tritonserver answers; blocks. "" when it does not in time, or has no such endpoint."""
    if not url:
        return ""
    try:
        with _direct.open(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError):  # it ends, is being started, or hangs
        return ""


def families(text: str) -> Iterator[Any]:
    """Yield tritonserver's families as OpenMetrics takes them, under the names that they have.

    There, a counter's name has to end with `_total`; those that do not are told without a type.
    """
    for family in text_string_to_metric_families(text):
        if family.type == "counter" and f"# TYPE {family.name}_total " not in text:
            family.type = "unknown"
            family.samples = [
                sample._replace(name=sample.name[: -len("_total")])
                if sample.name == f"{family.name}_total"
                else sample
                for sample in family.samples
            ]
        yield family


def queues_at(url: str) -> dict[str, list[QueueFigures]]:
    """Return what the tritonserver there says of its queues; blocks."""
    return queues(fetch(url))


def waiting_at(url: str) -> dict[str, int]:
    """Return how many requests wait in the queues of the tritonserver there, by model; blocks."""
    return waiting(fetch(url))


def waiting(text: str) -> dict[str, int]:
    """Return how many requests tritonserver says that wait, by model; nothing else of the page is looked at."""
    lines = (line for line in text.splitlines(keepends=True) if line.startswith(_PENDING))
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families("".join(lines)):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            counts[model] = counts.get(model, 0) + int(sample.value)
    return counts


def queues(text: str) -> dict[str, list[QueueFigures]]:
    """Return what tritonserver says of its queues, by model."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            field, unit = _FIELDS.get(family.name, ("", 1))
            version = sample.labels.get("version", "")
            if not field or not version.isdecimal():
                continue
            values = found.setdefault((sample.labels.get("model", ""), int(version)), {})
            value = sample.value * unit
            # Failures come by reason.
            values[field] = values.get(field, 0) + (value if field.endswith("_s") else int(value))
    by_model: dict[str, list[QueueFigures]] = {}
    for (model, number), told in sorted(found.items()):
        by_model.setdefault(model, []).append(QueueFigures(number, **told))
    return by_model
