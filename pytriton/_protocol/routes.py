"""Paths of the HTTP routes of typed functions."""

from __future__ import annotations

import re

__all__ = ["RESERVED", "check"]

#: First segments of paths that the frontend serves itself, or that other servers of the daemon use.
RESERVED = frozenset(
    [
        "admin",
        "docs",
        "health",
        "healthz",
        "invocations",
        "livez",
        "metrics",
        "models",
        "openapi.json",
        "ping",
        "readyz",
        "v1",
        "v2",
    ]
)
_MAX_PATH = 400
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+")


def check(path: str) -> None:
    """Check the path of a route.

    Raises:
        ValueError: it cannot be one; the text says why
        TypeError: it is not a string
    """
    if not isinstance(path, str):
        raise TypeError(f"a route is a string such as '/predict', got {path!r:.100}")
    first, *segments = path.split("/")
    if first or not segments or len(path) > _MAX_PATH or not all(map(_SEGMENT.fullmatch, segments)):
        raise ValueError(
            "a route is a slash followed by letters, digits, dots, dashes and underscores, such as /predict or "
            f"/text/labels, got {path!r:.100}"
        )
    if segments[0] in RESERVED or {".", ".."} & {*segments}:
        raise ValueError(f"the route {path} is reserved; choose another with route=")
    if len(segments) > 10:
        raise ValueError(f"the route {path} has more than 10 segments")
