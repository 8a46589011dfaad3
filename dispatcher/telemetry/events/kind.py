"""The declaration of a kind of event; kinds.py has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EventKind:
    """One kind of event.

    Args:
        name: its name in the event log
        level: level of its record in the daemon's log
        says: text of that record
        meaning: what has happened, for the documentation
        numbers: the numbers that it carries: name -> description with unit
        asked: requested by an actor, who is recorded; such events are stored in a separate file, where no crash loop
            displaces them
    """

    name: str
    level: str
    says: str
    meaning: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    asked: bool = False
