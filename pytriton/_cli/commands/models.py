"""The commands about registered models: models, register, unregister, scale, rollback."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import command
from pytriton._cli.flags import InstancesFlag, JsonFlag, ModelArgument, PythonFlag, RuntimeDirFlag
from pytriton._cli.output import print_json


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
            metavar="MODULE:ATTRIBUTE|FILE|TOOL:MODEL",
            help="A callable with a declaration (@declare), or a model file: ONNX (.onnx), PyTorch (.pt), "
            "scikit-learn (.joblib, .pkl), XGBoost (.ubj, .json), LightGBM (.txt); or another tool's model: mlflow:PATH, "
            "hf:TASK=PATH, sentence-transformers:PATH, torchserve:FILE.mar, litserve:FILE.py:API. Or use --model-dir "
            "instead.",
        ),
    ] = None,
    model_dir: Annotated[
        Optional[str],
        typer.Option(
            metavar="FOLDER",
            help="Directory of a Triton Python model, with config.pbtxt and 1/model.py, or a directory of such "
            "directories.",
        ),
    ] = None,
    name: Annotated[
        Optional[str], typer.Option(help="Model name, instead of the declared one.")
    ] = None,
    instances: InstancesFlag = None,
    device: Annotated[
        Optional[list[str]],
        typer.Option(
            help="GPU of a worker (CUDA_VISIBLE_DEVICES). Repeat the flag for more workers."
        ),
    ] = None,
    python: PythonFlag = None,
    requirement: Annotated[
        Optional[list[str]],
        typer.Option(
            help="With --model-dir, FILE or TOOL:MODEL: a package for the workers' environment. May be repeated."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a registered model with the same name.")
    ] = False,
    access_log: Annotated[
        bool,
        typer.Option("--access-log", help="Log each request in the model's access log."),
    ] = False,
    factory: Annotated[
        bool,
        typer.Option(
            "--factory", help="Call the target in each worker; its result is the callable."
        ),
    ] = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Register a callable, a model file or a Triton Python model. Modules are also imported from the working directory."""
    from pytriton._cli import daemon_connection
    from pytriton._cli.register_target import (
        RegisterCommand,
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
        raise typer.BadParameter("use either MODULE:ATTRIBUTE, a model file, or --model-dir FOLDER")
    is_callable = model_dir is None and not is_file(target or "")
    act = register_target if is_callable else register_folder
    if is_callable and requirement:
        raise typer.BadParameter("--requirement needs --model-dir or a model file")
    if factory and not is_callable:
        raise typer.BadParameter("--factory needs MODULE:ATTRIBUTE")
    info = act(
        RegisterCommand(model_dir or target or "", given),
        daemon_connection.runtime_dir(runtime_dir),
    )
    typer.echo(info)


@command
def unregister(model: ModelArgument, runtime_dir: RuntimeDirFlag = None) -> None:
    """Stop serving a model and stop its workers."""
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
            metavar="INSTANCES",
            help="Number of instances. 1:8 scales from 1 to 8 with the load.",
        ),
    ],
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Change a model's number of instances, without failing requests."""
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
    """Roll back the last replacement of a model, without failing requests."""
    from pytriton._cli import daemon_connection
    from pytriton._protocol import messages

    daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), messages.Rollback(model), timeout_s=None
    )
    typer.echo(f"rolled back {model}")
