"""Commands about the machine: doctor, install-server, cache."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import command, say
from pytriton._cli.flags import ConfigFlag, JsonFlag, print_json
from pytriton._cli.settings import Given, with_setting_flags
from pytriton._protocol.exit_codes import ExitCode


@command
@with_setting_flags
def doctor(flags: dict[str, Any], config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Check whether a daemon with these settings can work here, and suggest fixes."""
    from pytriton._cli.install import check

    checks = check(Given(flags, config).load_to_serve().config)
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
        typer.Option(metavar="FILE", help="Local wheel to install from, without network access."),
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
    """Download tritonserver and what its proxy needs now instead of at the first start."""
    from pytriton._cli.install import install

    flags = {} if cache_dir is None else {"cache_dir": cache_dir}
    for line in install(Given(flags, config).load().config, wheel, python_backend):
        typer.echo(line)


@command
def cache(
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove incomplete entries, and entries unused for --unused-for days.",
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
            help="State directory of a daemon; entries that its registrations use stay.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the entries of the cache directory, their size and use; remove unused ones with --prune."""
    from pytriton._cli.install import cache_entries, prune_cache

    given = {"cache_dir": cache_dir, "state_dir": state_dir}
    flags = {name: value for name, value in given.items() if value is not None}
    entries = cache_entries(Given(flags, config).load().config)
    gone = []
    for entry in prune_cache(entries, unused_for) if prune else ():
        gone.append(entry)
        say(f"removed {entry.path}")
    left = [entry for entry in entries if entry not in gone]
    if as_json:
        print_json([{**asdict(entry), "path": str(entry.path)} for entry in left])
    else:
        from pytriton._cli.tables import print_cache

        print_cache(left, freed=sum(entry.size for entry in gone))
