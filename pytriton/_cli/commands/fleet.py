"""`pytriton-daemon fleet`: what `pytriton-daemon` does with one daemon, with those of several nodes at once."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import typer

from pytriton._cli.commands import fleet_on_ray
from pytriton._cli.commands.fleet_on_ray import RayFlag
from pytriton._cli.errors import CliError, command, errors_of_clients, say
from pytriton._cli.flags import JsonFlag, PlainFlags, print_json
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton._protocol import messages
    from pytriton.fleet import FleetClient
    from pytriton.fleet.on_ray.client import RayFleetClient

ENV_NODES, ENV_KEY_FILE = "PYTRITON_DAEMON_NODES", "PYTRITON_DAEMON_KEY_FILE"

fleet = typer.Typer(
    cls=PlainFlags, help="The daemons of several nodes at once.", no_args_is_help=True
)
NodesFlag = Annotated[
    Optional[str],
    typer.Option(
        "--nodes",
        metavar="NODES",
        help=f"dns:NAME[:PORT], or HOST[:PORT],...; default: ${ENV_NODES}.",
    ),
]
KeyFlag = Annotated[
    Optional[str],
    typer.Option("--key-file", metavar="FILE", help=f"Your key; default: ${ENV_KEY_FILE}."),
]
FleetFlag = Annotated[
    Optional[str],
    typer.Option("--fleet", metavar="NAME", help="A fleet on Ray, instead of nodes."),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL")]


@fleet.command()
@command
def status(
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Show each node, and which models it serves; a node that is down ends it with code 3."""
    from pytriton._cli.fleet.fleet_tables import print_nodes

    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        answers = client.status()
    if as_json:
        print_json(answers)
    else:
        print_nodes(answers)
    if any(one.status is None for one in answers):
        raise typer.Exit(ExitCode.NO_DAEMON)


@fleet.command()
@command
def models(
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """List the models, and on how many nodes each is served."""
    from pytriton._cli.fleet.fleet_tables import print_fleet_models

    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        found = client.models()
    if as_json:
        print_json({one.name: {"nodes": one.by_node, "missing": one.missing} for one in found})
    else:
        print_fleet_models(found)


@fleet.command()
@command
def register(
    target: Annotated[str, typer.Argument(metavar="MODULE:ATTRIBUTE")],
    name: Annotated[Optional[str], typer.Option(help="Another name than the declared one.")] = None,
    instances: Annotated[
        Optional[str],
        typer.Option(help="Workers on each node (on Ray: in all); 1:8: as many as the load takes."),
    ] = None,
    python: Annotated[
        Optional[str], typer.Option(help="Interpreter of the workers, on the nodes.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a registered model of that name.")
    ] = False,
    canary: Annotated[
        Optional[float],
        typer.Option(
            metavar="SHARE",
            help="With --replace: such a share of the nodes gets it first, such as 0.1, and is watched.",
        ),
    ] = None,
    watch: Annotated[
        float, typer.Option(metavar="SECONDS", help="For so long; with --canary.")
    ] = 60.0,
    num_cpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="On Ray: CPUs that it holds for each instance. Default: 1."),
    ] = None,
    num_gpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="On Ray: GPUs that each instance gets, such as 1 or 0.5."),
    ] = None,
    resources: Annotated[
        Optional[str],
        typer.Option(
            metavar="JSON",
            help='On Ray: all that it holds for each instance, such as {"memory": 2e9, "resources": {"tpu": 1}}.',
        ),
    ] = None,
    runtime_env: Annotated[
        Optional[str],
        typer.Option(
            metavar="FILE", help="On Ray: the runtime_env of the workers, as YAML or JSON."
        ),
    ] = None,
    runtime_env_json: Annotated[
        Optional[str],
        typer.Option(
            metavar="JSON", help='On Ray: the same as text, such as {"working_dir": "."}.'
        ),
    ] = None,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Register a callable that carries a declaration with every node; all or nothing."""
    from pytriton._cli.fleet.fleet_options import options_of_ray
    from pytriton._cli.register_target import load_target, wanted_instances
    from pytriton.fleet.canary import Canary

    options: dict[str, Any] = {
        "model_name": name,
        "instances": None if instances is None else wanted_instances(instances),
        "python": python,
        "replace": replace or None,
    }
    of_ray = options_of_ray(num_cpus, num_gpus, resources, runtime_env, runtime_env_json)
    if of_ray and name_of_fleet is None:
        raise CliError(
            ExitCode.USAGE,
            f"{' and '.join(of_ray)}: Ray holds and makes these, so they go with --fleet NAME, not with nodes",
        )
    options.update(of_ray)
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        if canary is not None:
            options["canary"] = Canary(canary, watch)
        loaded = load_target(target)
        given = {key: value for key, value in options.items() if value is not None}
        served = client.register(loaded, progress=_progress(), **given)
    if isinstance(served, list):
        typer.echo("it is ready; see `pytriton-daemon fleet nodes`")
        return
    for node, url in served.urls.items():
        typer.echo(f"{served.name} is ready on {node}: {url}")


@fleet.command()
@command
def unregister(
    model: ModelArgument,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Stop serving a model on every node."""
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        client.unregister(model)
    typer.echo(f"unregistered {model}")


@fleet.command()
@command
def scale(
    model: ModelArgument,
    instances: Annotated[
        str,
        typer.Argument(
            metavar="INSTANCES", help="On each node (on Ray: in all); 1:8: as the load takes."
        ),
    ],
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Serve a model with another number of instances on each node; no request fails."""
    from pytriton._cli.register_target import wanted_instances

    wanted = wanted_instances(instances)
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        scaled = client.scale(model, cast(Any, wanted), progress=_progress())
    if scaled is None:
        typer.echo(f"{model} has {wanted} instances")
    else:
        typer.echo(f"{model} has {scaled.instances} instances on {len(scaled.by_node)} nodes")


@fleet.command()
@command
def rollback(
    model: ModelArgument,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Put back, on every node, what a model was before it was last replaced."""
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        client.rollback(model, progress=_progress())
    typer.echo(f"{model} is what it was before it was replaced")


@fleet.command()
@command
def sync(
    source: Annotated[
        Optional[str],
        typer.Option(metavar="NODE", help="Make every node as this one. Default: add only."),
    ] = None,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
) -> None:
    """Bring registrations to nodes that lack them, such as nodes that have joined."""
    with errors_of_clients():
        steps = _of_nodes(nodes, key_file).sync(source, _progress())
    for line in steps or ["the nodes are alike"]:
        typer.echo(line)


@fleet.command()
@command
def logs(
    model: Annotated[Optional[str], typer.Argument(metavar="MODEL")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to show.")] = 100,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Show the newest log lines of all nodes, or of one model on them, by time."""
    from pytriton._cli.log_lines import pretty

    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        found = client.logs(model, lines)
    for line in found:
        typer.echo(line if as_json else pretty(line, colors=sys.stdout.isatty()))


@contextmanager
def _fleet(
    nodes: str | None, key_file: str | None, name: str | None, ray_address: str
) -> Iterator[FleetClient | RayFleetClient]:
    """Yield the client of a fleet on Ray, or of the nodes that the flags, or the variables, name.

    What fails in the block ends the command.
    """
    from pytriton.daemon import connect

    if name is not None and (nodes or key_file):
        raise CliError(ExitCode.USAGE, "say either --fleet, or --nodes and --key-file")
    with errors_of_clients():
        if name is not None:
            yield connect(fleet=name, ray_address=ray_address)
        else:
            yield _of_nodes(nodes, key_file)


def _of_nodes(nodes: str | None, key_file: str | None) -> FleetClient:
    from pytriton.daemon import connect

    nodes = nodes or os.environ.get(ENV_NODES)
    if not nodes:
        raise CliError(
            ExitCode.USAGE,
            f"which nodes? Say --nodes dns:NAME, or --nodes HOST,HOST, or set {ENV_NODES}; or --fleet NAME on Ray",
        )
    return connect(nodes=nodes, key_file=key_file or os.environ.get(ENV_KEY_FILE))


def _progress() -> Any:
    def tell(progress: messages.Progress) -> None:
        say(f"  {progress.text}")

    return None if sys.stderr.isatty() else tell  # None: a bar


@fleet.command()
@command
def balance(
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to take HTTP; empty: nowhere.")
    ] = "127.0.0.1:8000",
    grpc: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to take gRPC; empty: nowhere.")
    ] = "127.0.0.1:8001",
    certificate: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate and key (PEM) for clients: TLS.")
    ] = "",
    node_ca: Annotated[
        str, typer.Option(metavar="FILE", help="Certificates that sign those of nodes with TLS.")
    ] = "",
    node_name: Annotated[
        str,
        typer.Option(metavar="NAME", help="In the certificates of nodes that are named by IP."),
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for an answer, and between parts of a stream.")
    ] = 600.0,
    connections: Annotated[
        int, typer.Option(min=0, help="Of clients at a time; 0: as many as the system allows.")
    ] = 0,
    folder: Annotated[
        Optional[Path],
        typer.Option(metavar="PATH", help="For HAProxy's files and sockets; a short path."),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.2, help="Seconds from one look at the nodes to the next.")
    ] = 2.0,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name: Annotated[
        Optional[str], typer.Option("--fleet", metavar="NAME", help="A fleet on Ray instead.")
    ] = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Run HAProxy before the nodes, in the foreground: one address for all, which follows what they serve."""
    from pytriton._cli.fleet.balance import run
    from pytriton.fleet.balancer.configuration import Settings

    settings = Settings(
        http,
        grpc,
        str(Path(certificate).absolute()) if certificate else "",
        str(Path(node_ca).absolute()) if node_ca else "",
        timeout,
        connections,
        node_name=node_name,
    )
    if name is not None:
        from pytriton.daemon import connect
        from pytriton.fleet.on_ray.client import BalancerView

        with errors_of_clients():
            view = BalancerView(connect(fleet=name, ray_address=ray_address), uuid.uuid4().hex)
            run(view.look, settings, folder, interval, view.applied)
        return
    with errors_of_clients():
        run(_of_nodes(nodes, key_file).status, settings, folder, interval)


for _command in (fleet_on_ray.start, fleet_on_ray.stop, fleet_on_ray.drain):
    fleet.command()(_command)
fleet.command("nodes")(fleet_on_ray.show_nodes)
