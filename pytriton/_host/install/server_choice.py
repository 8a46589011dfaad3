"""The user's choice of a tritonserver installation and of the Python for its proxy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytriton._host.settings import frontend_choice
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import beyond_pinned


@dataclass(frozen=True)
class ServerChoice:
    """The user's choice of tritonserver; every field is optional."""

    tritonserver: Path | None = (
        None  #: a binary or an installation's directory; no other one is tried
    )
    proxy_python: Path | None = None  #: the interpreter for the proxy; no other one is tried
    wheel: Path | None = None  #: a local wheel of the binaries, used instead of downloading it
    cache_dir: Path | None = None
    proxy: str = (
        "auto"  #: which proxy serves models: "auto", "native" (the compiled one) or "python"
    )
    frontend: str = "auto"  #: the program around Triton's core: "auto", "native" or "triton"
    options: tuple[str, ...] = ()  #: options of tritonserver that not every version has
    allow_client_shm: bool = True
    python_backend: bool = False  #: whether Triton's own python backend is needed from the start


def choice_of(
    config: DaemonConfig, wheel: Path | None = None, *, python_backend: bool = False
) -> ServerChoice:
    """Return the choice in a daemon's settings, with these additions."""
    return ServerChoice(
        tritonserver=_path(config.tritonserver),
        proxy_python=_path(config.proxy_python),
        wheel=wheel,
        cache_dir=_path(config.cache_dir),
        proxy=config.proxy,
        frontend=frontend_choice.chosen(config),
        options=tuple(beyond_pinned(config.tritonserver_options)),
        allow_client_shm=config.allow_client_shm,
        python_backend=python_backend,
    )


def _path(setting: str | None) -> Path | None:
    return Path(setting) if setting else None
