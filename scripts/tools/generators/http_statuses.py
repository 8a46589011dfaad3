"""proxy_backend/frontend/base/http_statuses.h: the reason phrases of HTTP statuses."""

from __future__ import annotations

from pathlib import Path

from pytriton._protocol.http_statuses import REASONS

PATH = Path("proxy_backend/frontend/base/http_statuses.h")
_HEAD = """/* Written by scripts/generate from pytriton/_protocol/http_statuses.py: do not edit. */
/* clang-format off */
#ifndef PYTRITON_FRONTEND_HTTP_STATUSES_H
#define PYTRITON_FRONTEND_HTTP_STATUSES_H

#define HTTP_STATUSES(X) \\
"""


def header() -> str:
    """Return the text of the header: a macro with a row for each status."""
    rows = [f'    X({status}, "{reason}")' for status, reason in REASONS.items()]
    return _HEAD + " \\\n".join(rows) + "\n\n#endif\n"
