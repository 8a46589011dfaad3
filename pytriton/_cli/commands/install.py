"""Commands for this machine's installation: doctor, install-server, cache."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import ConfigFlag, JsonFlag
from pytriton._cli.output import print_json, say
from pytriton._cli.settings import load_settings, load_to_serve, with_setting_flags
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton._host.install.cache_usage import CacheEntry
    from pytriton._host.settings.declarations import DaemonConfig


@command
@with_setting_flags
def doctor(flags: dict[str, Any], config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Check whether a daemon with these settings will work on this machine, and suggest fixes."""
    from pytriton._host.doctor.diagnosis import checks_for

    checks = checks_for(load_to_serve(StartFlags(flags, config)).config)
    if as_json:
        print_json([one.as_dict() for one in checks])
    else:
        from pytriton._cli.tables import print_checks

        print_checks(checks)
    if any(one.status == "problem" for one in checks):
        raise typer.Exit(ExitCode.ERROR)


@command
def install_server(
    wheel: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE", help="Local wheel to install from, instead of downloading it."
        ),
    ] = None,
    config: ConfigFlag = None,
    cache_dir: Annotated[
        Optional[str], typer.Option(metavar="PATH", help="Directory to install into.")
    ] = None,
    python_backend: Annotated[
        bool,
        typer.Option(
            "--python-backend",
            help="Also install what tritonserver's own python backend needs (python_backend_model).",
        ),
    ] = False,
) -> None:
    """Download tritonserver and the dependencies of its proxy now, instead of at the first start."""
    flags = {} if cache_dir is None else {"cache_dir": cache_dir}
    for line in _install(load_settings(StartFlags(flags, config)).config, wheel, python_backend):
        typer.echo(line)


def _install(config: DaemonConfig, wheel: Path | None, python_backend: bool) -> list[str]:
    """Find or install tritonserver and what its proxy needs. Return a line for each.

    Missing parts are downloaded or, if `wheel` is given, unpacked from it.

    Raises:
        CliError: a part is not available; the text says why, and how to fix it.
    """
    from pytriton._host.install.server_runtime import (
        ServerRuntimeError,
        choice_of,
        find_or_install_server,
    )

    if wheel is not None and not wheel.expanduser().is_file():
        raise CliError(ExitCode.USAGE, f"--wheel: {wheel} does not exist")
    try:
        choice = choice_of(config, wheel, python_backend=python_backend)
        runtime = find_or_install_server(choice, say)
    except ServerRuntimeError as error:
        raise CliError(ExitCode.SERVER_FAILED, str(error)) from None
    there = {"tritonserver": runtime.tree.program, "proxy": runtime.native or "Python"}
    if runtime.python is not None:
        there["proxy Python"] = runtime.python.environment.python
    return [f"{what}: {where}" for what, where in there.items()]


@command
def cache(
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove incomplete entries, and entries that were not used for --unused-for days.",
        ),
    ] = False,
    unused_for: Annotated[
        float,
        typer.Option(
            metavar="DAYS", min=0, help="Days without use after which --prune removes an entry."
        ),
    ] = 30.0,
    config: ConfigFlag = None,
    cache_dir: Annotated[
        Optional[str], typer.Option(metavar="PATH", help="Cache directory.")
    ] = None,
    state_dir: Annotated[
        Optional[str],
        typer.Option(
            metavar="PATH",
            help="State directory of a daemon. Entries that its registrations use are kept.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the size and use of the entries of the cache directory; remove unused ones with --prune."""
    given = {"cache_dir": cache_dir, "state_dir": state_dir}
    flags = {name: value for name, value in given.items() if value is not None}
    entries = cache_entries(load_settings(StartFlags(flags, config)).config)
    gone = []
    for entry in _prune(entries, unused_for) if prune else ():
        gone.append(entry)
        say(f"removed {entry.path}")
    left = [entry for entry in entries if entry not in gone]
    if as_json:
        print_json([{**asdict(entry), "path": str(entry.path)} for entry in left])
    else:
        from pytriton._cli.tables import print_cache

        print_cache(left, freed=sum(entry.size for entry in gone))


def cache_entries(config: DaemonConfig) -> list[CacheEntry]:
    """Return the entries of the configured cache directory."""
    from pytriton._host.install.cache import cache_dir
    from pytriton._host.install.cache_usage import entries_of

    cache = None if config.cache_dir is None else Path(config.cache_dir)
    kept = (config.state_path / "models").glob("*")
    return entries_of(cache_dir(cache), kept)


def _prune(entries: list[CacheEntry], unused_days: float) -> Iterator[CacheEntry]:
    """Remove incomplete and unused entries; yield each removed entry.

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
