"""Exports metrics to an OpenTelemetry collector over OTLP, if OpenTelemetry's environment variables name one.

A thread periodically sends the same metrics that a scrape returns, without blocking the daemon. A snapshot that the
collector rejects is dropped and counted. This loses no data, because counters are cumulative.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from pytriton.dispatcher.telemetry.metrics.daemon_metrics import Scrape
from pytriton.dispatcher.upgrade.snapshot import SentSeries

_log = structlog.get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL_MS, _MIN_INTERVAL_MS, _MAX_DIGITS = 60_000, 100, 9
#: Timeout for a snapshot from the dispatcher's event loop, and how long `close` waits for the thread, in seconds.
_SCRAPE_TIMEOUT_S, _STOP_TIMEOUT_S = 5.0, 1.0
#: Total time limit of an export, in seconds. (The exporter's own timeout restarts with every byte of the response.)
_EXPORT_TIMEOUT_S = 60.0
_MAX_REASON_LENGTH = 300


class OtlpExport:
    """Exports the metrics periodically.

    Args:
        scrape: returns the metrics; called in the dispatcher's event loop
        outcomes: counter of exports by outcome, "sent" or "dropped"
        environ: environment with OpenTelemetry's variables
    """

    def __init__(
        self,
        scrape: Callable[[], Coroutine[Any, Any, Scrape]],
        outcomes: Counter[str],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.outcomes = outcomes
        self._scrape = scrape
        self._environ = environ
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._exporter: Any = None
        self._start_times: Any = None
        self._failing = False
        #: An export that has exceeded its time limit. No other one starts until it ends.
        self._overdue: threading.Thread | None = None

    def open(self, adopted: SentSeries | None = None) -> None:
        """Start exporting, if a collector is configured. Call this in the dispatcher's event loop.

        `adopted` is the state of the previous version of the daemon, after an upgrade.
        """
        if not is_configured(self._environ):
            return
        protocol = next((self._environ[one] for one in _PROTOCOLS if self._environ.get(one)), "")
        if protocol not in ("", "http/protobuf"):
            _log.warning(
                "OTLP export is disabled: only the protocol http/protobuf is supported",
                protocol=protocol,
            )
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            from pytriton.dispatcher.telemetry.http import otlp_points
        except ImportError as error:
            install = f"{sys.executable} -m pip install opentelemetry-exporter-otlp-proto-http"
            _log.warning(
                "OTLP export is disabled: a package is missing", reason=str(error), install=install
            )
            return
        self._exporter_log = _ExporterLog()
        self._points = otlp_points
        self._start_times = otlp_points.StartTimes(adopted)
        self._exporter = OTLPMetricExporter()
        self._resource = _resource()
        self._exponential = self._environ.get(_HISTOGRAMS, "").startswith("base2_exponential")
        self._loop = asyncio.get_running_loop()
        self.outcomes.update(sent=0, dropped=0)
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def hand_over(self) -> SentSeries | None:
        """Return the state for the next version of the daemon; None if nothing is exported."""
        return None if self._start_times is None else self._start_times.hand_over()

    async def close(self) -> None:
        """Stop exporting, and abort an export in progress."""
        self._stopped.set()
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._exporter.shutdown)
            await loop.run_in_executor(None, self._thread.join, _STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(_interval_ms(self._environ) / 1e3):
            self._record(self._send())

    def _send(self) -> str:
        """Take and export a snapshot; return the error, or "" on success."""
        pending = asyncio.run_coroutine_threadsafe(self._scrape(), self._loop)
        try:
            scraped = pending.result(_SCRAPE_TIMEOUT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            pending.cancel()
            return "the dispatcher is busy"
        except Exception as error:  # any error: the next snapshot may succeed
            return f"cannot take a snapshot: {_text(error)}"
        try:
            data = self._points.metrics_data(
                scraped, self._resource, self._start_times, exponential=self._exponential
            )
        except Exception as error:  # the value is invalid
            return f"the snapshot cannot be sent: {_text(error)}"
        return self._export(data)

    def _export(self, data: Any) -> str:
        """Export data, within the time limit; return the error, or "" on success."""
        if self._overdue is not None and self._overdue.is_alive():
            return "the collector has not yet answered an earlier export"
        outcome = [f"the collector did not answer within {_EXPORT_TIMEOUT_S:g} s"]

        def export() -> None:
            try:
                accepted = self._exporter.export(data).name == "SUCCESS"
                outcome[0] = (
                    ""
                    if accepted
                    else self._exporter_log.last or "the collector rejected the snapshot"
                )
            except Exception as error:  # no error of the library may end the thread
                outcome[0] = f"the snapshot cannot be sent: {_text(error)}"

        exporting = threading.Thread(target=export, name="otlp export", daemon=True)
        try:
            exporting.start()
        except RuntimeError as error:  # no thread can be started now
            return f"the snapshot cannot be sent: {_text(error)}"
        self._overdue = exporting
        exporting.join(_EXPORT_TIMEOUT_S)
        return outcome[0]

    def _record(self, reason: str) -> None:
        self.outcomes["dropped" if reason else "sent"] += 1
        if reason and not self._failing and not self._stopped.is_set():
            _log.warning("OTLP export failed", reason=reason)
        elif self._failing and not reason:
            _log.info("OTLP export recovered")
        self._failing = bool(reason)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables name a collector for metrics and do not disable the export."""
    exporters = environ.get("OTEL_METRICS_EXPORTER") or "otlp"
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return any(environ.get(one) for one in _ENDPOINTS) and "otlp" in exporters and not off


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_LENGTH]


def _interval_ms(environ: Mapping[str, str]) -> float:
    text = environ.get(_INTERVAL, "")
    # A larger number would exceed the longest possible wait.
    known = text.isdecimal() and len(text) <= _MAX_DIGITS
    return max(_MIN_INTERVAL_MS, int(text)) if known else _DEFAULT_INTERVAL_MS


def _resource() -> Any:
    """Return the attributes of the resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override ours."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    host = socket.gethostname()
    ours = {
        "service.name": "pytriton-daemon",
        "service.instance.id": f"{host}:{os.getpid()}",
        "host.name": host,
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


class _ExporterLog(logging.Handler):
    """Log handler that captures the exporter's log, to learn why data was rejected. The records do not reach other handlers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message of a record."""
        self.last = record.getMessage()[:_MAX_REASON_LENGTH]
