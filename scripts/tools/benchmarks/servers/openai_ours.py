"""Serves the OpenAI API with a daemon of this checkout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai_work
import ours

from pytriton.daemon import DaemonClient


def callable_of(name: str) -> Any:
    """Return the callable as a user would write it."""
    if name == "embed":
        return openai_work.embed

    async def talk(request: Any) -> AsyncIterator[str]:
        async for token in openai_work.tokens(name):
            yield token

    return talk


def register(client: DaemonClient, spec: dict[str, Any]) -> None:
    """Register the model of the specification."""
    name = spec["model"]["name"]
    client.register(
        callable_of(name),
        name,
        openai="embeddings" if name == "embed" else "chat",
        sys_path=[ours.HERE],
        progress=False,
    )


if __name__ == "__main__":
    raise SystemExit(ours.run(register, openai=True))
