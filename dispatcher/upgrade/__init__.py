"""The upgrade of a running daemon in place, and the rolling replacement of its workers and server."""

from __future__ import annotations
