"""The form of a kind of event; kinds.py has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """One kind of event.

    Args:
        name: what it is called in the event log
        level: of its record in the daemon's log
        says: the text of that record
        meaning: what has happened, for people
        numbers: those that it carries: name -> what it counts, with its unit
        asked: somebody asks for it, so it says who; such events are kept in a file of their own, where no crash
            loop displaces them
    """

    name: str
    level: str
    says: str
    meaning: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    asked: bool = False
