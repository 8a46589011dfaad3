"""Models: list, register, unregister, scale, roll back."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import command
from pytriton._cli.flags import JsonFlag, ModelArgument, RuntimeDirFlag, print_json


@command
def models(runtime_dir: RuntimeDirFlag = None, as_json: JsonFlag = False) -> None:
    """List the registered models."""
    from pytriton._cli import daemon_connection

    answer = daemon_connection.ask_models(daemon_connection.runtime_dir(runtime_dir))
    if as_json:
        print_json(answer)
    else:
        from pytriton._cli.tables import print_models

        print_models(answer)


@command
def register(
    target: Annotated[
        Optional[str],
        typer.Argument(
            metavar="MODULE:ATTRIBUTE|FILE",
            help="A callable that carries a declaration (@declare); or a model file of ONNX (.onnx), PyTorch (.pt), "
            "scikit-learn (.joblib, .pkl), XGBoost (.ubj, .json), LightGBM (.txt). Or give --model-dir.",
        ),
    ] = None,
    model_dir: Annotated[
        Optional[str],
        typer.Option(
            metavar="FOLDER",
            help="A Triton Python model: the folder with config.pbtxt, 1/model.py; or a folder of such folders.",
        ),
    ] = None,
    name: Annotated[Optional[str], typer.Option(help="Another name than the declared one.")] = None,
    instances: Annotated[
        Optional[str],
        typer.Option(help="Number of workers; 1:8: as many as the load takes, from 1 to 8."),
    ] = None,
    device: Annotated[
        Optional[list[str]],
        typer.Option(help="GPU of one worker (CUDA_VISIBLE_DEVICES); repeat it for more workers."),
    ] = None,
    python: Annotated[
        Optional[str],
        typer.Option(help="Interpreter of the workers, or an environment's folder or archive."),
    ] = None,
    requirement: Annotated[
        Optional[list[str]],
        typer.Option(
            help="With --model-dir or FILE: a package of an environment to make; repeat it."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a registered model of that name.")
    ] = False,
    access_log: Annotated[
        bool,
        typer.Option("--access-log", help="Write a line about each request to its access log."),
    ] = False,
    factory: Annotated[
        bool, typer.Option("--factory", help="Call it in each worker; it returns the callable.")
    ] = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Register a callable, a model file, or a Triton Python model; modules are looked for in this folder, too."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.register_target import (
        Wish,
        is_file,
        register_folder,
        register_target,
        wanted_instances,
    )

    options: dict[str, Any] = {
        "model_name": name,
        "instances": None if instances is None else wanted_instances(instances),
        "devices": device or None,
        "python": python,
        "requirements": requirement or None,
    }
    options.update(replace=replace or None, factory=factory or None, access_log=access_log or None)
    given = {key: value for key, value in options.items() if value is not None}
    if (target is None) == (model_dir is None):
        raise typer.BadParameter(
            "give either MODULE:ATTRIBUTE, a model file, or --model-dir FOLDER"
        )
    is_callable = model_dir is None and not is_file(target or "")
    act = register_target if is_callable else register_folder
    if is_callable and requirement:
        raise typer.BadParameter("--requirement goes with --model-dir, or with a model file")
    if factory and not is_callable:
        raise typer.BadParameter("--factory goes with MODULE:ATTRIBUTE")
    info = act(Wish(model_dir or target or "", given), daemon_connection.runtime_dir(runtime_dir))
    typer.echo(info)


@command
def unregister(model: ModelArgument, runtime_dir: RuntimeDirFlag = None) -> None:
    """Stop serving a model and end its workers."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), messages.Unregister(model), timeout_s=None
    )
    typer.echo(f"unregistered {model}")


@command
def scale(
    model: ModelArgument,
    instances: Annotated[
        str,
        typer.Argument(
            metavar="INSTANCES", help="How many; 1:8: as many as the load takes, from 1 to 8."
        ),
    ],
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Serve a model with another number of instances; no request fails."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.register_target import wanted_instances
    from pytriton._protocol import messages
    from pytriton.autoscale import autoscale_of

    wanted = wanted_instances(instances)
    count = wanted if isinstance(wanted, int) else 0
    message = messages.Scale(model, count, autoscale_of(wanted))
    daemon_connection.ask(daemon_connection.runtime_dir(runtime_dir), message, timeout_s=None)
    if message.autoscale is not None:
        typer.echo(f"{model} has {message.autoscale.least} to {message.autoscale.most} instances")
        return
    typer.echo(f"{model} has {count} instance{'s' if count > 1 else ''}")


@command
def rollback(model: ModelArgument, runtime_dir: RuntimeDirFlag = None) -> None:
    """Put back what a model was before it was last replaced; no request fails."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), messages.Rollback(model), timeout_s=None
    )
    typer.echo(f"{model} is what it was before it was replaced")
