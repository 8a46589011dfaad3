"""The benchmark: this system and others under the same load, interleaved in one run (scripts/bench)."""

from __future__ import annotations
