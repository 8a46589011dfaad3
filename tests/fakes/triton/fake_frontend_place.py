"""A place for a frontend to start in, for tests that check its configuration and start nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.install.server_runtime import ServerChoice, ServerRuntime
from pytriton._host.install.server_tree import ServerTree
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.server.frontend import ServerPlace

PREFIX = "pytriton-7-"


def fake_place(
    folder: Path,
    backends: Iterable[str],
    *,
    caches: Path | None = None,
    frontend: NativeProgram | None = None,
    options: Iterable[str] = (),
) -> ServerPlace:
    """Return a place in `folder` with backends of these names."""
    for name in backends:
        (folder / "backends" / name).mkdir(parents=True)
    tree = ServerTree(Path("tritonserver"), folder, caches, (), (), "2.51.0")
    return ServerPlace(
        ServerRuntime(tree, ServerChoice(), folder, None, frontend, options=frozenset(options)),
        folder / "models",
        folder / "backends",
        PREFIX,
        cast(KillOnDeath, None),
        lambda pid, line: None,
    )
