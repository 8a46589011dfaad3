"""Serves the OpenAI API with a daemon of this checkout."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import openai_work
import ours
import work


def callable_of(name: str) -> Any:
    """Return the callable as a user would write it."""
    if name == "embed":
        return openai_work.embed

    async def talk(request: Any) -> AsyncIterator[str]:
        async for token in openai_work.tokens(name):
            yield token

    return talk


def main() -> int:
    """Serve until the benchmark ends it."""
    spec = work.spec()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command = [
        sys.executable,
        "-m",
        "pytriton._cli",
        "start",
        "--runtime-dir",
        ours.runtime_dir(spec),
    ]
    command += [
        "--ephemeral",
        "--frontend",
        spec["frontend"],
        "--openai-port",
        str(spec["openai_port"]),
    ]
    for name in ("http", "grpc", "metrics"):
        command += [f"--{name}-port", str(spec[f"{name}_port"])]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        client = ours.wait_ready(spec, process)
        name = spec["model"]["name"]
        client.register(
            callable_of(name),
            name,
            openai="embeddings" if name == "embed" else "chat",
            sys_path=[ours.HERE],
            progress=False,
        )
        client.close()
        return process.wait()
    finally:
        ours.end(process)


if __name__ == "__main__":
    raise SystemExit(main())
