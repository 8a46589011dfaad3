"""Observability of the daemon: events, metrics, request samples, its HTTP server and its dashboard."""

from __future__ import annotations
