"""Imported by the process that forks daemons, to do in advance what a daemon does on first use.

A daemon defers imports that are slow or rarely needed. When it imports what is tested with real starts.
"""

from __future__ import annotations

import psutil  # noqa: F401

import pytriton.dispatcher.telemetry.events.webhook_http
import pytriton.dispatcher.telemetry.http.management_server
import pytriton.dispatcher.telemetry.metrics.triton_metrics
import pytriton.dispatcher.workers.hard_limits  # noqa: F401
from pytriton.dispatcher.daemon_status import own_version
from pytriton.formats import pbtxt

own_version()
pbtxt.write({"name": "warm", "backend": "pytriton"})
