"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

#: Describes the values that `parse_size` accepts.
ALLOWED = "a number of bytes, such as 1048576, 64MiB or 1.5GB"


def parse_size(raw: object) -> int:
    """Return the number of bytes that `raw` stands for: 4096, "64MiB", "1.5GB"; kB is 1000 bytes, KiB 1024.

    Raises:
        ValueError: `raw` is not a size.
    """
    if isinstance(raw, bool):
        raise ValueError
    if isinstance(raw, int):
        count = raw
    else:
        match = _SIZE.fullmatch(str(raw).strip())
        if match is None:
            raise ValueError
        unit = match.group(2).lower().rstrip("b")
        base = 1024 if unit.endswith("i") else 1000
        count = round(float(match.group(1)) * base ** _POWERS[unit.rstrip("i")])
    if count < 0:
        raise ValueError
    return count
