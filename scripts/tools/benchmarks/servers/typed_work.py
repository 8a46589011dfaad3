"""The functions of the typed workloads, the same in every system. They need nothing outside the standard library."""

from __future__ import annotations

from typing import Any


def predict(text: str, top_k: int = 3) -> list[dict[str, Any]]:
    """Return the first words of a text as labels, with a score for each."""
    words = text.split()[:top_k]
    return [{"label": word, "score": 1 / (place + 1)} for place, word in enumerate(words)]


def measure(image: bytes) -> dict[str, int]:
    """Return the size of an uploaded image."""
    return {"size": len(image)}
