"""Formatting of log records (JSON lines) for people."""

from __future__ import annotations

import json
from typing import Any

#: Fields that are part of the prefix, or are shown separately.
_PREFIX = (
    "timestamp", "level", "event", "source", "model", "instance", "exception", "error_type", "error_message"
)  # fmt: skip
_COLORS = {"debug": "2", "warning": "33", "error": "31", "critical": "31;1"}


def pretty(line: str, colors: bool = False) -> str:
    """Return a record as `TIME level model: text key=value`; a line that is not a record is only escaped.

    Control characters in a child's output are escaped: they could control the terminal.
    """
    record = _record(line)
    if record is None:
        return visible(line)
    level = str(record.get("level", ""))
    time = str(record.get("timestamp", "")).replace("T", " ")[:23]
    rest = "".join(f" {key}={value}" for key, value in record.items() if key not in _PREFIX)
    text = f"{time} {level:<8} {_who(record)}{visible(str(record.get('event', '')))}"
    text += visible(rest)
    if record.get("exception"):
        text += "\n" + visible(str(record["exception"]), keep="\n")
    color = _COLORS.get(level)
    return f"\x1b[{color}m{text}\x1b[0m" if colors and color else text


def own_event(line: str) -> str | None:
    """Return the text of a record of the daemon itself; None for its children's output."""
    record = _record(line)
    if record is None or "source" in record:
        return None
    return visible(str(record.get("event", "")))


def model_of(line: str) -> str | None:
    """Return the name of the model that a record is about, None if there is none."""
    model = (_record(line) or {}).get("model")
    return model if isinstance(model, str) else None


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _who(record: dict[str, Any]) -> str:
    model, instance = record.get("model"), record.get("instance")
    if model is not None:
        return f"{model}: " if instance is None else f"{model}/{instance}: "
    return f"{record['source']}: " if "source" in record else ""


def visible(text: str, keep: str = "") -> str:
    """Return a text with control characters, which could control the terminal, escaped."""
    return "".join(
        char if char.isprintable() or char in keep or char == "\t" else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
