"""The commands `fleet start`, `stop`, `nodes` and `drain`, which are only for fleets on a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command, errors_of_clients
from pytriton._cli.flags import JsonFlag
from pytriton._cli.output import print_json
from pytriton._protocol.exit_codes import ExitCode

RayFlag = Annotated[
    str, typer.Option("--ray-address", metavar="ADDRESS", help="Address of the Ray cluster.")
]
NameFlag = Annotated[str, typer.Option("--fleet", metavar="NAME", help="Name of the fleet.")]


@command
def start(
    ray_address: RayFlag = "auto",
    name: NameFlag = "default",
    nodes: Annotated[
        Optional[int],
        typer.Option(
            min=1,
            help="Maximum number of nodes. Surplus nodes are drained. Default: all nodes.",
        ),
    ] = None,
    runtime_dir: Annotated[
        Optional[str],
        typer.Option(
            metavar="PATH", help="Directory in which the daemons create their runtime directories."
        ),
    ] = None,
    flags: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[-- FLAGS]", help="Flags of `pytriton-daemon start`, for each daemon."
        ),
    ] = None,
) -> None:
    """Start a fleet on a Ray cluster: a controller, and a daemon on each node. They keep running after this command has
    exited.

    If the fleet is running, only its number of nodes is changed, and FLAGS apply to daemons that are started later.
    """
    from pytriton.fleet.on_ray.lifecycle import start_fleet

    with errors_of_clients():
        over = start_fleet(
            name, ray_address, nodes=nodes, flags=flags or (), runtime_dir=runtime_dir
        )
    typer.echo(f"the fleet {name!r} is starting; see `pytriton-daemon fleet nodes`")
    if over:
        which = "1 node is" if over == 1 else f"{over} nodes are"
        typer.echo(
            f"{which} surplus: the models on them are moved to other nodes, then the nodes are released"
        )


@command
def stop(ray_address: RayFlag = "auto", name: NameFlag = "default") -> None:
    """Stop a fleet on a Ray cluster after its daemons have finished in-flight requests."""
    from pytriton.fleet.on_ray.lifecycle import stop_fleet

    with errors_of_clients():
        stop_fleet(name, ray_address)
    typer.echo(f"stopped the fleet {name!r}")


@command
def show_nodes(
    ray_address: RayFlag = "auto", name: NameFlag = "default", as_json: JsonFlag = False
) -> None:
    """Show the nodes of a fleet on a Ray cluster, and the models on each."""
    from pytriton._cli.tables import print_nodes
    from pytriton.daemon import connect

    with errors_of_clients():
        found = connect(fleet=name, ray_address=ray_address).nodes()
    if as_json:
        print_json(found)
    else:
        leaving = {one.label for one in found if one.draining}
        print_nodes([one.as_status() for one in found], leaving)


@command
def drain(
    node: Annotated[
        Optional[str],
        typer.Argument(
            metavar="NODE",
            help="Node id, or the beginning of one. Default: the node on which this command runs.",
        ),
    ] = None,
    ray_address: RayFlag = "auto",
    name: NameFlag = "default",
    timeout: Annotated[
        float,
        typer.Option(min=1, help="Maximum time to wait until the node serves nothing, in seconds."),
    ] = 600,
) -> None:
    """Drain a node of a fleet on Ray: move its instances to other nodes, without failing requests."""
    from pytriton.daemon import connect

    with errors_of_clients():
        drained = connect(fleet=name, ray_address=ray_address).drain(node, timeout)
    typer.echo(f"node {drained} is drained: it serves no models")


def options_of_ray(
    num_cpus: Optional[float],
    num_gpus: Optional[float],
    resources: Optional[str],
    runtime_env: Optional[str],
    runtime_env_json: Optional[str],
) -> dict[str, Any]:
    """Return the arguments `resources` and `runtime_env` of `RayFleetClient.register`, if flags set them.

    Args:
        num_cpus, num_gpus: resources for each instance
        resources: all resources for each instance, as JSON
        runtime_env: path of a YAML or JSON file
        runtime_env_json: its content as JSON, instead of a file

    Raises:
        CliError: a value is invalid, the file cannot be read, or two flags set the same value
    """
    found: dict[str, Any] = {}
    held = {} if resources is None else _object("--resources", resources)
    for name, flag, amount in (
        ("num_cpus", "--num-cpus", num_cpus),
        ("num_gpus", "--num-gpus", num_gpus),
    ):
        if amount is None:
            continue
        if name in held:
            raise CliError(ExitCode.USAGE, f"{flag} and --resources both set {name}: remove one")
        held[name] = amount
    if held or resources is not None:
        found["resources"] = held
    if runtime_env is not None and runtime_env_json is not None:
        raise CliError(ExitCode.USAGE, "use either --runtime-env or --runtime-env-json, not both")
    if runtime_env_json is not None:
        found["runtime_env"] = _object("--runtime-env-json", runtime_env_json)
    if runtime_env is not None:
        found["runtime_env"] = _of_file(runtime_env)
    return found


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{flag} {text!r} is not JSON: {error}") from None
    return _a_dict(flag, found)


def _of_file(name: str) -> dict[str, Any]:
    flag = f"--runtime-env {name}"
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        more = (
            ". Use a file name, or --runtime-env-json with the text itself" if "{" in name else ""
        )
        raise CliError(ExitCode.USAGE, f"{flag} cannot be read: {error}{more}") from None
    try:
        return _a_dict(flag, json.loads(text))
    except ValueError:
        pass
    try:
        import yaml  # a dependency of Ray
    except ImportError:
        raise CliError(
            ExitCode.USAGE,
            f"{flag} is not JSON; to read YAML, install PyYAML (a dependency of Ray)",
        ) from None
    try:
        return _a_dict(flag, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise CliError(ExitCode.USAGE, f"{flag} is neither JSON nor YAML: {error}") from None


def _a_dict(flag: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise CliError(
            ExitCode.USAGE,
            f"{flag} must be an object that maps names to values, not {type(found).__name__}",
        )
    return found
