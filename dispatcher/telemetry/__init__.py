"""What the daemon says of itself: events, metrics, single requests, its HTTP server and its dashboard."""

from __future__ import annotations
