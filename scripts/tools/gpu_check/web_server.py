"""Runs `web_app` with uvicorn on a free port, and writes the port to a file: `python -m gpu_check.web_server FILE`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from gpu_check.web_app import app


def main(file: Path) -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(str(listener.getsockname()[1]))
    draft.replace(file)  # connections wait in the backlog from now on
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
