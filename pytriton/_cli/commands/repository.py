"""The command group `repository`: the models in the daemon's model repositories."""

from __future__ import annotations

from typing import Annotated

import typer

from pytriton._cli.errors import command
from pytriton._cli.flags import JsonFlag, RuntimeDirFlag
from pytriton._cli.output import print_json
from pytriton._cli.typer_adapter import PlainFlags

repository = typer.Typer(
    cls=PlainFlags,
    help="List, load and unload models in model repositories (--model-repository).",
    no_args_is_help=True,
)
_Model = Annotated[str, typer.Argument(metavar="MODEL")]


@repository.command("list")
@command
def list_models(
    runtime_dir: RuntimeDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List each model with its versions, its state, what serves it and, if it is not served, the reason."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    answer = daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), messages.GetRepository()
    )
    assert isinstance(answer, messages.Repository)  # the answer to GetRepository
    if as_json:
        print_json(answer.models)
        return
    from pytriton._cli.tables import print_repository

    print_repository(answer.models)


@repository.command("load")
@command
def load(model: _Model, runtime_dir: RuntimeDirFlag = None) -> None:
    """Load or reload a model. Until it is ready, the current one keeps serving."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    question = messages.LoadFromRepository(model)
    daemon_connection.ask(daemon_connection.runtime_dir(runtime_dir), question, timeout_s=None)
    typer.echo(f"loaded {model}")


@repository.command("unload")
@command
def unload(model: _Model, runtime_dir: RuntimeDirFlag = None) -> None:
    """Stop serving a model, after in-flight requests have finished."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    question = messages.UnloadFromRepository(model)
    daemon_connection.ask(daemon_connection.runtime_dir(runtime_dir), question, timeout_s=None)
    typer.echo(f"unloaded {model}")
