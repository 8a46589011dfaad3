"""tritonserver's own metrics, fetched over HTTP with a short timeout, and the queue statistics in them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Optional

import psutil

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
#: A sample with labels, and one of its labels. A page has a dozen samples for each model, so only those of these metrics
#: are parsed for the queue statistics. The library's parser takes 13 µs for each sample.
_SAMPLE = r"^(%s)\{(.*)\} (\S+)$"
_QUEUE_SAMPLE = re.compile(_SAMPLE % "|".join(_FIELDS), re.MULTILINE)
_ANY_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)")
_PENDING_SAMPLE = re.compile(_SAMPLE % _PENDING, re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_COUNTER = re.compile(r"^# TYPE (\S+)_total counter$", re.MULTILINE)
_COMMENT = re.compile(r"^# (HELP|TYPE) (\S+)(.*)$", re.MULTILINE)
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
class TritonFamily:
    """A metric of tritonserver, with its name, type ("counter" …) and help text.

    Attributes:
        samples: the name, labels and value of each sample
    """

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)


@dataclass(frozen=True)
class TritonMetrics:
    """Metrics of tritonserver.

    Attributes:
        text: original text; "" if tritonserver did not answer
        queues: queue statistics, by model
        since: start time of the counters, in seconds since the epoch; None if tritonserver was replaced during the
            request
    """

    text: str = ""
    queues: Mapping[str, list[QueueMetrics]] = field(default_factory=dict)
    since: Optional[float] = 0.0

    @cached_property
    def families(self) -> tuple[TritonFamily, ...]:
        """All metrics; () if the text was truncated."""
        return () if _is_truncated(self.text) else tuple(_families(self.text))

    @cached_property
    def openmetrics(self) -> str:
        """The text in OpenMetrics, without the end marker; "" if it was truncated.

        OpenMetrics requires names of counters to end with `_total`. Counters with other names keep their names, but
        have no type.
        """
        if _is_truncated(self.text):
            return ""
        counters = set(_COUNTER.findall(self.text))

        def rewritten(comment: re.Match[str]) -> str:
            keyword, name, rest = comment.groups()
            family = name[: -len("_total")] if name.endswith("_total") else name
            if family in counters:
                name = family
            elif keyword == "TYPE" and rest in (" counter", " untyped"):
                rest = " unknown"
            if keyword == "HELP":
                rest = rest.replace('"', '\\"')
            return f"# {keyword} {name}{rest}"

        return _COMMENT.sub(rewritten, self.text)


def read(url: str, process: Callable[[], Optional[int]]) -> TritonMetrics:
    """Fetch the metrics of tritonserver, and parse the queue statistics. Blocks.

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
    """Parse the text of tritonserver's metrics. If it is truncated, the result contains no queue statistics."""
    return TritonMetrics(text, {} if _is_truncated(text) else _queues(text))


def waiting_at(url: str) -> dict[str, int]:
    """Fetch the number of requests that are waiting in tritonserver's queue, by model. Blocks."""
    return waiting(fetch(url))


def waiting(text: str) -> dict[str, int]:
    """Extract each model's number of waiting requests from the text of tritonserver's metrics."""
    counts: dict[str, int] = {}
    for _, labels, value in _samples(_PENDING_SAMPLE, text):
        model = labels.get("model", "")
        counts[model] = counts.get(model, 0) + int(value)
    return counts


def _is_truncated(text: str) -> bool:
    return bool(text) and not text.endswith("\n")


def _samples(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the name, the labels and the value of each sample that matches."""
    for name, labels, value in pattern.findall(text):
        yield name, _labels(labels), float(value)


def _labels(text: str) -> dict[str, str]:
    return {name: _unescaped(value) for name, value in _LABEL.findall(text)}


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


def _families(text: str) -> Iterator[TritonFamily]:
    """Yield the metrics in the text. tritonserver writes the type of each before its samples."""
    help_text, family = "", None
    for line in text.split("\n"):  # not splitlines: a label may contain U+2028
        if line.startswith("# HELP "):
            help_text = _unescaped(line[len("# HELP ") :].partition(" ")[2])
        elif line.startswith("# TYPE "):
            name, _, kind = line[len("# TYPE ") :].partition(" ")
            if family is not None:
                yield family
            family, help_text = TritonFamily(name, kind, help_text), ""
        elif family is not None and (sample := _ANY_SAMPLE.fullmatch(line)) is not None:
            name, labels, value = sample.groups()
            family.samples.append((name, _labels(labels or ""), float(value)))
    if family is not None:
        yield family


def _queues(text: str) -> dict[str, list[QueueMetrics]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for metric, labels, value in _samples(_QUEUE_SAMPLE, text):
        version = labels.get("version", "")
        if not version.isdecimal():
            continue
        name, unit = _FIELDS[metric]
        values = found.setdefault((labels.get("model", ""), int(version)), {})
        scaled = value * unit
        # Failures are counted by reason, so add them up.
        values[name] = values.get(name, 0) + (scaled if name.endswith("_s") else int(scaled))
    by_model: dict[str, list[QueueMetrics]] = {}
    for (model, number), queue in sorted(found.items()):
        by_model.setdefault(model, []).append(QueueMetrics(number, **queue))
    return by_model
