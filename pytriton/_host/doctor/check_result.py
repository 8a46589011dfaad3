"""The result of one check of `pytriton-daemon doctor`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

#: ok: works. warning: works, with the limits in the detail. problem: a daemon will not start or not serve.
Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    status: Status
    detail: str  #: what the check found
    mend: str = ""  #: what to do; empty if nothing

    def as_dict(self) -> dict[str, str]:
        """Return name, status, detail and mend as strings, for JSON."""
        return dataclasses.asdict(self)
