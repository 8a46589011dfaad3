"""Small helpers whose paths PyTriton's users know."""

from __future__ import annotations
