"""`pytriton-daemon`: all of its commands, in the order in which --help tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from pytriton.cli.commands import daemon_life, explaining, looking, models, requests, setup
from pytriton.cli.commands.fleet import fleet
from pytriton.cli.commands.keys import keys
from pytriton.cli.commands.repository import repository
from pytriton.cli.commands.service import service
from pytriton.cli.flags import PlainFlags, print_version_and_exit

app = typer.Typer(
    cls=PlainFlags,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def pytriton_daemon(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version_and_exit, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve Python callables through NVIDIA Triton Inference Server."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "explain": explaining.explain,
    "events": explaining.events,
    "slowest": requests.slowest,
    "access-log": requests.access_log,
    "profile": requests.profile,
    "start": daemon_life.start,
    "stop": daemon_life.stop,
    "drain": daemon_life.drain,
    "upgrade": daemon_life.upgrade,
    "reload": daemon_life.reload,
    "restart": daemon_life.restart,
    "status": looking.status,
    "top": looking.show_top,
    "token": looking.token,
    "models": models.models,
    "register": models.register,
    "unregister": models.unregister,
    "scale": models.scale,
    "rollback": models.rollback,
    "logs": looking.logs,
    "doctor": setup.doctor,
    "install-server": setup.install_server,
    "version": looking.version,
}
for name, function in _COMMANDS.items():
    app.command(name)(function)
app.add_typer(service, name="service")
app.add_typer(repository, name="repository")
app.add_typer(keys, name="keys")
app.add_typer(fleet, name="fleet")
