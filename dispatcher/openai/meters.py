"""Metrics of the OpenAI frontend, named according to OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from pytriton.dispatcher.openai.state import MetricData

__all__ = ["Meters"]

#: Maximum number of distinct error codes (callables can make up any), and OpenTelemetry's name for all others.
_MAX_CODES, _OTHER = 64, "_OTHER"
_CODE = re.compile(r"[\w.-]{1,64}", re.ASCII)

#: Histogram bounds, as defined by the conventions.
_DURATIONS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_EACH = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = (
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
)  # fmt: skip

_MODEL = "gen_ai_request_model"
Labels = tuple[tuple[str, str], ...]


class _Histogram:
    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help_
        self._bounds = bounds
        self._series: dict[Labels, list[float]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        series = self._series.get(labels)
        if series is None:  # a count per bucket, a count above all bounds, and the sum
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def collect(self, shows: Callable[[str], bool]) -> MetricData:
        metrics = MetricData(self._name, "histogram", self._help, [])
        for labels, series in self._series.items():
            if not shows(dict(labels)[_MODEL]):
                continue
            below = 0.0
            values: list[tuple[str, str, float]] = []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), series):
                below += count
                values.append(("_bucket", bound, below))
            values += [("_sum", "", series[-1]), ("_count", "", below)]
            metrics.series.append((list(labels), values))
        return metrics


class Meters:
    """All metrics of the OpenAI frontend. Only registered models become labels, so clients cannot create any.

    Args:
        now: returns the current time, in seconds since the epoch
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._since = now()
        self.active = 0
        self.refused: dict[str, int] = {}
        self._codes: set[str] = set()
        self._duration = _Histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from a request to the end of its response, in seconds.",
            _DURATIONS,
        )
        self._first = _Histogram(
            "gen_ai_server_time_to_first_token_seconds", "Time from a request to the first event of its stream, in seconds.",
            _FIRST,
        )  # fmt: skip
        self._each = _Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Time per output token after the first, in seconds.",
            _EACH,
        )
        self._tokens = _Histogram(
            "gen_ai_client_token_usage", "Number of input and output tokens per request.", _TOKENS
        )

    def answered(
        self,
        model: str,
        operation: str,
        duration_s: float,
        *,
        first_s: float | None = None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        error: str = "",
    ) -> None:
        """Count a request that was answered or failed.

        Args:
            first_s: time until the first piece of a stream, in seconds; None for other requests
            error: error code; "" on success
        """
        labels = _labels(model, operation)
        failed: Labels = (("error_type", self._known(error)),) if error else ()
        self._duration.observe((*labels, *failed), duration_s)
        if first_s is not None:
            self._first.observe(labels, first_s)
            if completion_tokens > 1:
                self._each.observe(labels, (duration_s - first_s) / (completion_tokens - 1))
        for kind, count in (("input", prompt_tokens), ("output", completion_tokens)):
            if count:
                self._tokens.observe((*labels, ("gen_ai_token_type", kind)), count)

    def refuse(self, code: str) -> None:
        """Count a request that was refused before it reached a model."""
        code = self._known(code)
        self.refused[code] = self.refused.get(code, 0) + 1

    def _known(self, code: str) -> str:
        """Return the label value for an error code. The number of values is limited, because each creates a permanent
        series.
        """
        if code not in self._codes:
            if len(self._codes) >= _MAX_CODES or not _CODE.fullmatch(code):
                return _OTHER
            self._codes.add(code)
        return code

    def collect(self, shows: Callable[[str], bool] = lambda model: True) -> list[MetricData]:
        """Return all metrics. Those of a model are included only if `shows` accepts the model."""
        codes = sorted(self.refused.items())
        metrics = [
            MetricData(
                "pytriton_openai_active_requests",
                "gauge",
                "Requests in progress.",
                [([], [("", "", self.active)])],
            ),
            MetricData(
                "pytriton_openai_refused_requests",
                "counter",
                "Requests refused before they reached a model, by error code.",
                [([("code", code)], [("_total", "", count)]) for code, count in codes],
            ),
            *(
                one.collect(shows)
                for one in (self._duration, self._first, self._each, self._tokens)
            ),
        ]
        return [msgspec.structs.replace(one, since=self._since) for one in metrics]

    def text(self, shows: Callable[[str], bool] = lambda model: True) -> str:
        """Return the metrics in Prometheus' text format; for `shows`, see `collect`."""
        lines = []
        for metric in self.collect(shows):
            name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            for labels, values in metric.series:
                for suffix, bound, value in values:
                    shown = _text([*labels, ("le", bound)] if bound else labels)
                    lines.append(f"{metric.name}{suffix}{shown} {value:.15g}")
        return "\n".join(lines) + "\n"


def _labels(model: str, operation: str) -> Labels:
    return (("gen_ai_operation_name", operation), (_MODEL, model))


def _text(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
