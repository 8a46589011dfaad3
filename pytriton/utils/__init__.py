"""Helper modules with the same import paths as in PyTriton."""

from __future__ import annotations
