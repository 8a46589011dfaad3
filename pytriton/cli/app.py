"""The commands of `pytriton-daemon`: each parses, calls and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton.cli import explaining
from pytriton.cli.errors import CliError, command
from pytriton.cli.flags import (
    ConfigFlag,
    JsonFlag,
    PlainFlags,
    RuntimeDirFlag,
    print_json,
    print_version_and_exit,
)
from pytriton.cli.fleet import fleet
from pytriton.cli.keys import keys
from pytriton.cli.repository import repository
from pytriton.cli.service import service
from pytriton.cli.settings import Given, kept, with_setting_flags
from pytriton.ipc.exit_codes import ExitCode

app = typer.Typer(
    cls=PlainFlags,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version_and_exit, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve Python callables through NVIDIA Triton Inference Server."""


app.add_typer(service, name="service")
app.add_typer(repository, name="repository")
app.add_typer(keys, name="keys")
app.add_typer(fleet, name="fleet")
app.command()(explaining.explain)
app.command()(explaining.events)

ServerFlag = Annotated[
    bool,
    typer.Option(
        "--server",
        help="Replace tritonserver alone, without a request lost: with front=native.",
    ),
]
TimeoutFlag = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait for the daemon's end.")
]


def _served(incomplete: str) -> list[str]:
    """Return the models that a shell may complete to: those of the daemon that is found without a flag."""
    from pytriton.cli import link

    try:
        models = link.ask_models(link.runtime_dir(None))
    except CliError:  # no daemon runs: nothing to complete
        return []
    return [one.name for one in models if one.name.startswith(incomplete)]


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=_served)]


@app.command()
@command
@with_setting_flags
def start(
    flags: dict[str, Any],
    config: ConfigFlag = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start in the background and wait until ready.")
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting and its source, start nothing."),
    ] = False,
) -> None:
    """Start a daemon: in the foreground, or with --detach in the background."""
    given = Given(flags, config)
    loaded = given.load()
    if print_config:
        from pytriton.dispatcher.settings.rendering import config_as_toml

        typer.echo(config_as_toml(loaded), nl=False)
        return
    from pytriton.cli import launch

    if detach:
        _print_started(launch.run_detached(loaded.config, given))
    else:
        raise typer.Exit(launch.run_here(loaded.config, given))


@app.command()
@command
def stop(runtime_dir: RuntimeDirFlag = None, timeout: TimeoutFlag = 120.0) -> None:
    """Stop the daemon: batches at hand are answered, then everything it started ends."""
    from pytriton.cli import link

    pid = link.stop(link.runtime_dir(runtime_dir), timeout)
    typer.echo(f"stopped the daemon (pid {pid})")


@app.command()
@command
def reload(runtime_dir: RuntimeDirFlag = None) -> None:
    """Read the settings anew in the running daemon; tell what holds now and what needs a restart."""
    from pytriton.cli import link

    answer = link.reload(link.runtime_dir(runtime_dir))
    typer.echo(f"changed: {', '.join(answer.applied) or 'nothing'}")
    if answer.needs_restart:
        waiting = ", ".join(answer.needs_restart)
        typer.echo(f"these need `pytriton-daemon restart`: {waiting}")


@app.command()
@command
@with_setting_flags
def restart(
    flags: dict[str, Any],
    config: ConfigFlag = None,
    timeout: TimeoutFlag = 120.0,
    server: ServerFlag = False,
) -> None:
    """Stop the daemon if one runs, and start it in the background.

    Settings file and environment are read anew; the flags of the last start hold, and those given
    now come on top.
    """
    from pytriton.cli import launch, link

    rundir = link.runtime_dir(Path(flags["runtime_dir"]) if "runtime_dir" in flags else None)
    if server:
        link.replace_server(rundir)
        typer.echo(f"tritonserver was replaced (pid {link.ask_status(rundir).server.pid})")
        return
    pinned = {**flags, "runtime_dir": str(rundir.path)}
    given = Given(pinned, config).over(kept(rundir))
    settings = given.load()  # before the stop: wrong settings leave the old daemon running
    if rundir.running_pid() is not None:
        typer.echo(f"stopped the daemon (pid {link.stop(rundir, timeout)})")
    _print_started(launch.run_detached(settings.config, given))


def _print_started(status: Any) -> None:
    from pytriton.cli.tables import endpoints

    typer.echo(f"the daemon is ready (pid {status.pid}), runtime directory {status.runtime_dir}")
    for line in endpoints(status.server):
        typer.echo(f"  {line}")


@app.command()
@command
def status(runtime_dir: RuntimeDirFlag = None, as_json: JsonFlag = False) -> None:
    """Show the daemon, its endpoints, and the workers of every model."""
    from pytriton.cli import link

    answer = link.ask_status(link.runtime_dir(runtime_dir))
    if as_json:
        print_json(answer)
    else:
        from pytriton.cli.tables import print_status

        print_status(answer)


@app.command("top")
@command
def show_top(
    model: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only models whose names contain this.")
    ] = "",
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")
    ] = 2.0,
    sort: Annotated[
        str, typer.Option(help="name, requests, p99, busy, memory, waiting or ends.")
    ] = "name",
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, over one interval.")
    ] = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Watch what models do: requests, times, memory, restarts; keys scale, put back, unregister."""
    from pytriton.cli.top.command import run

    run(runtime_dir, model, interval_s=interval, order=sort, once=once, as_json=as_json)


@app.command()
@command
def token(runtime_dir: RuntimeDirFlag = None) -> None:
    """Print the access token of Triton's restricted endpoints."""
    from pytriton.cli import link

    typer.echo(link.access_token(link.runtime_dir(runtime_dir)))


@app.command()
@command
def models(runtime_dir: RuntimeDirFlag = None, as_json: JsonFlag = False) -> None:
    """List the registered models."""
    from pytriton.cli import link

    answer = link.ask_models(link.runtime_dir(runtime_dir))
    if as_json:
        print_json(answer)
    else:
        from pytriton.cli.tables import print_models

        print_models(answer)


@app.command()
@command
def register(
    target: Annotated[
        Optional[str],
        typer.Argument(
            metavar="[MODULE:ATTRIBUTE]",
            help="A callable that carries a declaration (@declare). Or give --model-dir.",
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
        typer.Option(help="With --model-dir: a package of an environment to make; repeat it."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a registered model of that name.")
    ] = False,
    factory: Annotated[
        bool, typer.Option("--factory", help="Call it in each worker; it returns the callable.")
    ] = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Register a callable, or a Triton Python model; modules are looked for in the working directory, too."""
    from pytriton.cli import link
    from pytriton.cli.registering import (
        Wish,
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
    options.update(replace=replace or None, factory=factory or None)
    given = {key: value for key, value in options.items() if value is not None}
    act = register_target if model_dir is None else register_folder
    if (target is None) == (model_dir is None):
        raise typer.BadParameter("give either MODULE:ATTRIBUTE or --model-dir FOLDER")
    if model_dir is None and requirement:
        raise typer.BadParameter("--requirement goes with --model-dir")
    if model_dir is not None and factory:
        raise typer.BadParameter("--factory goes with MODULE:ATTRIBUTE")
    info = act(Wish(model_dir or target or "", given), link.runtime_dir(runtime_dir))
    typer.echo(info)


@app.command()
@command
def unregister(model: ModelArgument, runtime_dir: RuntimeDirFlag = None) -> None:
    """Stop serving a model and end its workers."""
    from pytriton.cli import link
    from pytriton.ipc import messages

    link.ask(link.runtime_dir(runtime_dir), messages.Unregister(model), timeout_s=None)
    typer.echo(f"unregistered {model}")


@app.command()
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
    from pytriton.autoscale import autoscale_of
    from pytriton.cli import link
    from pytriton.cli.registering import wanted_instances
    from pytriton.ipc import messages

    wanted = wanted_instances(instances)
    count = wanted if isinstance(wanted, int) else 0
    message = messages.Scale(model, count, autoscale_of(wanted))
    link.ask(link.runtime_dir(runtime_dir), message, timeout_s=None)
    if message.autoscale is not None:
        typer.echo(f"{model} has {message.autoscale.least} to {message.autoscale.most} instances")
        return
    typer.echo(f"{model} has {count} instance{'s' if count > 1 else ''}")


@app.command()
@command
def rollback(model: ModelArgument, runtime_dir: RuntimeDirFlag = None) -> None:
    """Put back what a model was before it was last replaced; no request fails."""
    from pytriton.cli import link
    from pytriton.ipc import messages

    link.ask(link.runtime_dir(runtime_dir), messages.Rollback(model), timeout_s=None)
    typer.echo(f"{model} is what it was before it was replaced")


@app.command()
@command
def logs(
    model: Annotated[
        Optional[str], typer.Argument(metavar="[MODEL]", autocompletion=_served)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to show.")] = 100,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Show the log of the daemon, or of one model; works when no daemon runs, too."""
    from pytriton.cli import link
    from pytriton.cli.show_logs import show

    show(link.runtime_dir(runtime_dir), model, lines, follow=follow, as_json=as_json)


@app.command()
@command
@with_setting_flags
def doctor(flags: dict[str, Any], config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Check whether a daemon with these settings can work here, and say what mends it."""
    from pytriton.cli.installing import check

    checks = check(Given(flags, config).load().config)
    if as_json:
        print_json([one.as_dict() for one in checks])
    else:
        from pytriton.cli.tables import print_checks

        print_checks(checks)
    if any(one.status == "problem" for one in checks):
        raise typer.Exit(ExitCode.FAULT)


@app.command("install-server")
@command
def install_server(
    wheel: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="The wheel on this machine: no network.")
    ] = None,
    config: ConfigFlag = None,
    cache_dir: Annotated[
        Optional[str], typer.Option(metavar="PATH", help="Folder to keep it in.")
    ] = None,
    python_backend: Annotated[
        bool,
        typer.Option(
            "--python-backend",
            help="Also what tritonserver's own python backend needs for models that it runs (python_backend_model).",
        ),
    ] = False,
) -> None:
    """Fetch tritonserver and what its proxy needs now instead of at the first start."""
    from pytriton.cli.installing import install

    flags = {} if cache_dir is None else {"cache_dir": cache_dir}
    for line in install(Given(flags, config).load().config, wheel, python_backend):
        typer.echo(line)


@app.command()
@command
def version() -> None:
    """Print the version."""
    from pytriton.cli.version import print_version

    raise typer.Exit(print_version())
