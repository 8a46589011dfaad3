"""The process that preloads modules and forks: python template.py DESCRIPTOR NAME MODULE... (see prefork.py)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from typing import Any

from pytriton._protocol.fork_protocol import CannotFork, Forker, join_helpers, show_as

_LARGEST = 1 << 17  #: bytes of a wish: arguments and variables


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request and report the exit code; return the request in the fork, and None at the end.

    A fork started for the test process becomes its child, and its pid is reported.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        if not data:
            return None
        wish: dict[str, Any] = json.loads(data)
        is_left = wish.get("is_left", False)
        pid = _fork_for_parent() if is_left else os.fork()
        if pid == 0:
            connection.close()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, max(descriptors) + 1)
            return wish
        for descriptor in descriptors:
            os.close(descriptor)
        if is_left:
            connection.send(str(pid).encode())
            continue
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork_for_parent() -> int:
    """Fork a child of the test process; return -1 where that is impossible."""
    try:
        join_helpers()
        return Forker().fork()
    except CannotFork:
        return -1


def _main(descriptor: str, name: str, *modules: str) -> None:
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    gc.freeze()
    wish = _serve(socket.socket(fileno=int(descriptor)))
    if wish is None:
        return
    show_as(name, wish["script"] if "script" in wish else wish["module"])
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    sys.argv[1:] = wish["arguments"]
    sys.stdin = open(0)  # noqa: SIM115 (to the end of the process)
    # The first of sys.path was this file's own folder.
    if "script" in wish:
        sys.argv[0], sys.path[0] = wish["script"], os.path.dirname(os.path.abspath(wish["script"]))
        runpy.run_path(wish["script"], run_name="__main__")
    else:
        sys.path[0] = wish["cwd"]
        runpy.run_module(wish["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
