"""Small helpers under the paths of PyTriton."""

from __future__ import annotations
