"""Observability of the daemon: events, metrics, samples of requests, the management server and the dashboard."""

from __future__ import annotations
