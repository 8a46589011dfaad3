"""Implementation of `install-server`, `doctor` and `cache`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytriton._cli.errors import CliError, say
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton._host.doctor.diagnosis import Check
    from pytriton._host.install.cache_usage import CacheEntry
    from pytriton._host.settings.declarations import DaemonConfig


def check(config: DaemonConfig) -> list[Check]:
    """Run doctor's checks for a daemon with these settings."""
    from pytriton._host.doctor.diagnosis import checks_for

    return checks_for(config)


def install(config: DaemonConfig, wheel: Path | None, python_backend: bool) -> list[str]:
    """Find or download tritonserver (or unpack it from `wheel`) and what its proxy needs; return a line for each part.

    Raises:
        CliError: it is unavailable; the text says why, and the fix.
    """
    from pytriton._host.install.server_runtime import (
        ServerRuntimeError,
        choice_of,
        find_or_install_server,
    )

    if wheel is not None and not wheel.expanduser().is_file():
        raise CliError(ExitCode.USAGE, f"--wheel names {wheel}, which does not exist")
    try:
        choice = choice_of(config, wheel, python_backend=python_backend)
        runtime = find_or_install_server(choice, say)
    except ServerRuntimeError as error:
        raise CliError(ExitCode.SERVER_FAILED, str(error)) from None
    there = {"tritonserver": runtime.tree.program, "proxy": runtime.native or "Python"}
    if runtime.python is not None:
        there["proxy Python"] = runtime.python.environment.python
    return [f"{what}: {where}" for what, where in there.items()]


def cache_entries(config: DaemonConfig) -> list[CacheEntry]:
    """Return the entries of the cache of these settings."""
    from pytriton._host.install.cache import cache_dir
    from pytriton._host.install.cache_usage import entries_of

    cache = None if config.cache_dir is None else Path(config.cache_dir)
    kept = (config.state_path / "models").glob("*")
    return entries_of(cache_dir(cache), kept)


def prune_cache(entries: list[CacheEntry], unused_days: float) -> Iterator[CacheEntry]:
    """Remove unused entries; yield each one that has been removed.

    Raises:
        CliError: an entry cannot be removed.
    """
    from pytriton._host.install.cache_usage import prune

    try:
        yield from prune(entries, unused_days)
    except OSError as error:
        raise CliError(
            ExitCode.ERROR, f"{error.filename or 'an entry'} cannot be removed: {error.strerror}"
        ) from None
