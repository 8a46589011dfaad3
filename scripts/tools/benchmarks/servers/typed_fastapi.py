"""Replaces this process by uvicorn with the FastAPI app, with as many workers as the system asks for."""

from __future__ import annotations

import os
import sys

import work


def main() -> None:
    """Start uvicorn. BENCH_ASYNC and BENCH_WORKERS come from the system."""
    spec = work.spec()
    os.environ["BENCH_MODEL"] = spec["model"]["name"]
    command = ["-m", "uvicorn", "typed_fastapi_app:app", "--app-dir", os.path.dirname(__file__)]
    command += ["--host", "127.0.0.1", "--port", str(spec["http_port"])]
    command += ["--workers", os.environ["BENCH_WORKERS"], "--log-level", "warning"]
    command += ["--no-access-log"]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
