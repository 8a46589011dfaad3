"""The metrics sent by OTLP, where OpenTelemetry's variables name a collector.

A thread asks for what a scraper is told, and sends it. Nobody waits for it. What a collector does not take is dropped,
and counted: the next snapshot has all counters again.
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

from pytriton.dispatcher.runtime.upgrade_snapshot import SentSeries
from pytriton.dispatcher.telemetry.metrics.snapshot import Scraped

_log = structlog.get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HISTOGRAMS = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_EVERY_MS, _LEAST_MS, _DIGITS = 60_000, 100, 9
#: What the dispatcher's loop gets to make a snapshot in, and what a stop waits for the thread.
_SNAPSHOT_S, _STOP_S = 5.0, 1.0
#: What a collector gets for one export in all: the exporter's own time-out begins again with each byte of an answer.
_WHOLE_S = 60.0
_LONGEST_REASON = 300


class OtlpExport:
    """Sends what a scraper is told, again and again.

    Args:
        scrape: returns that; called in the dispatcher's loop
        environ: has OpenTelemetry's variables

    Attributes:
        outcomes: how many of these were "sent" and "dropped".
    """

    def __init__(
        self,
        scrape: Callable[[], Coroutine[Any, Any, Scraped]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._scrape = scrape
        self._environ = environ
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._exporter: Any = None
        self._beginnings: Any = None
        self._failing = False
        #: An export that takes longer than it may: there is no other one beside it.
        self._late: threading.Thread | None = None

    def open(self, adopted: SentSeries | None = None) -> None:
        """Send from now on, if there is a collector. To be called in the dispatcher's loop.

        `adopted`: what a former version of this process has handed over.
        """
        if not wanted(self._environ):
            return
        protocol = next((self._environ[one] for one in _PROTOCOLS if self._environ.get(one)), "")
        if protocol not in ("", "http/protobuf"):
            _log.warning("metrics are not sent: only http/protobuf is known", protocol=protocol)
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            from pytriton.dispatcher.telemetry.http import otlp_points
        except ImportError as error:
            install = f"{sys.executable} -m pip install opentelemetry-exporter-otlp-proto-http"
            _log.warning("metrics cannot be sent by OTLP", reason=str(error), install=install)
            return
        self._reasons = _Reasons()
        self._points = otlp_points
        self._beginnings = otlp_points.Beginnings(adopted)
        self._exporter = OTLPMetricExporter()
        self._resource = _resource()
        self._exponential = self._environ.get(_HISTOGRAMS, "").startswith("base2_exponential")
        self._loop = asyncio.get_running_loop()
        self.outcomes.update(sent=0, dropped=0)
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def hand_over(self) -> SentSeries | None:
        """Return what the next version of this process goes on with; None where nothing is sent."""
        return None if self._beginnings is None else self._beginnings.hand_over()

    async def close(self) -> None:
        """Stop sending; what is under way is given up."""
        self._ended.set()
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._exporter.shutdown)
            await loop.run_in_executor(None, self._thread.join, _STOP_S)

    def _run(self) -> None:
        while not self._ended.wait(_interval_ms(self._environ) / 1e3):
            self._note(self._send())

    def _send(self) -> str:
        """Return why nothing was sent; "" if it was."""
        asked = asyncio.run_coroutine_threadsafe(self._scrape(), self._loop)
        try:
            scraped = asked.result(_SNAPSHOT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return "the dispatcher is busy"
        except Exception as error:  # of whatever the snapshot asks: the next one may be had
            return f"there is no snapshot: {_text(error)}"
        try:
            data = self._points.metrics_data(
                scraped, self._resource, self._beginnings, exponential=self._exponential
            )
        except Exception as error:  # of a value
            return f"the snapshot cannot be sent: {_text(error)}"
        return self._export(data)

    def _export(self, data: Any) -> str:
        """Return why the collector has not taken it in time; "" if it has."""
        if self._late is not None and self._late.is_alive():
            return "the collector has not answered to an earlier snapshot yet"
        said = [f"the collector did not answer within {_WHOLE_S:g} s"]

        def export() -> None:
            try:
                taken = self._exporter.export(data).name == "SUCCESS"
                said[0] = "" if taken else self._reasons.last or "the collector did not take them"
            except Exception as error:  # of a library: it may not end the thread
                said[0] = f"the snapshot cannot be sent: {_text(error)}"

        exporting = threading.Thread(target=export, name="otlp export", daemon=True)
        try:
            exporting.start()
        except RuntimeError as error:  # there can be no more threads now
            return f"the snapshot cannot be sent: {_text(error)}"
        self._late = exporting
        exporting.join(_WHOLE_S)
        return said[0]

    def _note(self, reason: str) -> None:
        self.outcomes["dropped" if reason else "sent"] += 1
        if reason and not self._failing and not self._ended.is_set():
            _log.warning("metrics could not be sent by OTLP", reason=reason)
        elif self._failing and not reason:
            _log.info("metrics are sent by OTLP again")
        self._failing = bool(reason)


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables name a collector of metrics, and want it used."""
    exporters = environ.get("OTEL_METRICS_EXPORTER") or "otlp"
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return any(environ.get(one) for one in _ENDPOINTS) and "otlp" in exporters and not off


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_REASON]


def _interval_ms(environ: Mapping[str, str]) -> float:
    text = environ.get(_INTERVAL, "")
    # No wait is as long as a number can be.
    known = text.isdecimal() and len(text) <= _DIGITS
    return max(_LEAST_MS, int(text)) if known else _EVERY_MS


def _resource() -> Any:
    """Return whose metrics they are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before what we say."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    host = socket.gethostname()
    ours = {
        "service.name": "pytriton-daemon",
        "service.instance.id": f"{host}:{os.getpid()}",
        "host.name": host,
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


class _Reasons(logging.Handler):
    """The exporter's log, which nobody else sees: it says why something was not taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.last = record.getMessage()[:_LONGEST_REASON]
