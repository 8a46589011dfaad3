"""The command group `keys`, which manages the keys of clients that connect over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import ConfigFlag, JsonFlag
from pytriton._cli.output import print_json
from pytriton._cli.settings import load_settings
from pytriton._cli.typer_adapter import PlainFlags
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton._host.client_keys import KeyStore

keys = typer.Typer(
    cls=PlainFlags,
    help="Manage the keys of clients that control the daemon over TCP.",
    no_args_is_help=True,
)
KeysDirFlag = Annotated[
    Optional[str], typer.Option("--keys-dir", metavar="PATH", help="Directory of the keys.")
]


@keys.command("init")
@command
def init(config: ConfigFlag = None, keys_dir: KeysDirFlag = None) -> None:
    """Create the server's key, which the setting control_tcp needs."""
    with _keys_of(config, keys_dir) as store:
        typer.echo(f"public key of this server: {store.make_server_key()}  (in {store.folder})")


@keys.command("add")
@command
def add(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    output: Annotated[
        Optional[Path],
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: NAME.pytriton-key."
        ),
    ] = None,
    config: ConfigFlag = None,
    keys_dir: KeysDirFlag = None,
) -> None:
    """Authorize a client: create its key, and write the key file that it needs. Takes effect immediately."""
    path = output or Path(f"{name}.pytriton-key")
    with _keys_of(config, keys_dir) as store:
        store.add(name, path)
    typer.echo(
        f"{path}: copy it to the client in secret, then delete it here; use it as connect(..., key_file=...)"
    )


@keys.command("list")
@command
def list_keys(
    config: ConfigFlag = None, keys_dir: KeysDirFlag = None, as_json: JsonFlag = False
) -> None:
    """List the clients that may connect, with their public keys."""
    with _keys_of(config, keys_dir) as store:
        clients = store.clients()
    if as_json:
        print_json(clients)
    else:
        for name, key in clients.items():
            typer.echo(f"{name}  {key}")


@keys.command("remove")
@command
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    config: ConfigFlag = None,
    keys_dir: KeysDirFlag = None,
) -> None:
    """Revoke a client's key. Takes effect immediately."""
    with _keys_of(config, keys_dir) as store:
        store.remove(name)
    typer.echo(f"removed {name}")


@contextmanager
def _keys_of(config: str | None, keys_dir: str | None) -> Iterator[KeyStore]:
    """Yield the keys of a daemon with these settings; exit if they cannot be used."""
    from pytriton._host.client_keys import KeyStoreError, key_store

    flags = {} if keys_dir is None else {"keys_dir": keys_dir}
    try:
        yield key_store(load_settings(StartFlags(flags, config)).config)
    except KeyStoreError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
