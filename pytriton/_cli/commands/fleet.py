"""The command group `fleet`: commands for the daemons of several nodes at once."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import typer

from pytriton._cli.commands import fleet_on_ray
from pytriton._cli.commands.fleet_on_ray import RayFlag
from pytriton._cli.errors import CliError, command, errors_of_clients
from pytriton._cli.flags import JsonFlag
from pytriton._cli.output import print_json, say
from pytriton._cli.typer_adapter import PlainFlags
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton._protocol import messages
    from pytriton.fleet import FleetClient, NodeStatus
    from pytriton.fleet.balancer.configuration import BalancerSettings
    from pytriton.fleet.on_ray.client import RayFleetClient

ENV_NODES, ENV_KEY_FILE = "PYTRITON_DAEMON_NODES", "PYTRITON_DAEMON_KEY_FILE"

fleet = typer.Typer(
    cls=PlainFlags, help="Control the daemons of several nodes at once.", no_args_is_help=True
)
NodesFlag = Annotated[
    Optional[str],
    typer.Option(
        "--nodes",
        metavar="NODES",
        help=f"The nodes, as dns:NAME[:PORT] or HOST[:PORT],... Default: ${ENV_NODES}.",
    ),
]
KeyFlag = Annotated[
    Optional[str],
    typer.Option("--key-file", metavar="FILE", help=f"Your key file. Default: ${ENV_KEY_FILE}."),
]
FleetFlag = Annotated[
    Optional[str],
    typer.Option("--fleet", metavar="NAME", help="Name of a fleet on Ray, instead of --nodes."),
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
    """Show each node and the models it serves. Exit with code 3 if a node is down."""
    from pytriton._cli.tables import print_nodes

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
    from pytriton._cli.tables import print_fleet_models

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
    name: Annotated[
        Optional[str], typer.Option(help="Model name, instead of the declared one.")
    ] = None,
    instances: Annotated[
        Optional[str],
        typer.Option(
            help="Number of workers per node (on Ray: in total). 1:8 scales from 1 to 8 with the load."
        ),
    ] = None,
    python: Annotated[
        Optional[str], typer.Option(help="Interpreter of the workers (a path on the nodes).")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a registered model with the same name.")
    ] = False,
    canary: Annotated[
        Optional[float],
        typer.Option(
            metavar="SHARE",
            help="With --replace: share of the nodes that get the new model first and are observed, such as 0.1.",
        ),
    ] = None,
    watch: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="With --canary: how long to observe the nodes, in seconds."
        ),
    ] = 60.0,
    num_cpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="On Ray: CPUs reserved for each instance. Default: 1."),
    ] = None,
    num_gpus: Annotated[
        Optional[float],
        typer.Option(min=0, help="On Ray: GPUs for each instance, such as 1 or 0.5."),
    ] = None,
    resources: Annotated[
        Optional[str],
        typer.Option(
            metavar="JSON",
            help='On Ray: resources reserved for each instance, such as {"memory": 2e9, "resources": {"tpu": 1}}.',
        ),
    ] = None,
    runtime_env: Annotated[
        Optional[str],
        typer.Option(
            metavar="FILE", help="On Ray: file with the runtime_env of the workers, YAML or JSON."
        ),
    ] = None,
    runtime_env_json: Annotated[
        Optional[str],
        typer.Option(
            metavar="JSON", help='On Ray: runtime_env as JSON text, such as {"working_dir": "."}.'
        ),
    ] = None,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Register a callable with a declaration (@declare) on every node, or on none if that fails."""
    from pytriton._cli.commands.fleet_on_ray import options_of_ray
    from pytriton._cli.register_target import is_file, load_target, wanted_instances
    from pytriton.fleet.broadcast import ask_each
    from pytriton.fleet.canary import Canary
    from pytriton.foreground import served_url

    if is_file(target):
        raise CliError(
            ExitCode.USAGE,
            f"{target} is a file, or another tool's model, but a fleet registers only callables: run "
            f"`pytriton-daemon register {target}` on every node",
        )

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
            f"{' and '.join(of_ray)}: supported only on Ray, so use --fleet NAME instead of --nodes",
        )
    options.update(of_ray)
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        if canary is not None:
            options["canary"] = Canary(canary, watch)
        loaded = load_target(target)
        given = {key: value for key, value in options.items() if value is not None}
        served = client.register(loaded, progress=_progress(), **given)
    if isinstance(served, list):
        typer.echo("the model is ready; see `pytriton-daemon fleet nodes`")
        return
    urls = ask_each(served.by_node, lambda _, info: served_url(info.url, info.route)).done
    for node, info in served.by_node.items():
        typer.echo(f"{served.name} is ready on {node}: {urls.get(node, info.url)}")


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
            metavar="INSTANCES",
            help="Number of instances per node (on Ray: in total). 1:8 scales from 1 to 8 with the load.",
        ),
    ],
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Change a model's number of instances on each node, without failing requests."""
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
    """Roll back the last replacement of a model on every node."""
    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        client.rollback(model, progress=_progress())
    typer.echo(f"rolled back {model}")


@fleet.command()
@command
def sync(
    source: Annotated[
        Optional[str],
        typer.Option(
            metavar="NODE",
            help="Make every node identical to this one. Default: only add missing registrations.",
        ),
    ] = None,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
) -> None:
    """Copy registrations to nodes that lack them, such as new nodes."""
    with errors_of_clients():
        steps = _of_nodes(nodes, key_file).sync(source, _progress())
    for line in steps or ["the nodes are identical"]:
        typer.echo(line)


@fleet.command()
@command
def logs(
    model: Annotated[
        Optional[str],
        typer.Argument(
            metavar="MODEL", help="Model whose logs are shown. Default: the logs of the daemons."
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines.")] = 100,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name_of_fleet: FleetFlag = None,
    ray_address: RayFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Show the most recent log lines of all daemons, or of one model on all nodes, sorted by time."""
    from pytriton._cli.logs import pretty

    with _fleet(nodes, key_file, name_of_fleet, ray_address) as client:
        found = client.logs(model, lines)
    for line in found:
        typer.echo(line if as_json else pretty(line, colors=sys.stdout.isatty()))


@contextmanager
def _fleet(
    nodes: str | None, key_file: str | None, name: str | None, ray_address: str
) -> Iterator[FleetClient | RayFleetClient]:
    """Yield a client for a fleet on Ray, or for the nodes given by flags or environment variables.

    A client's exception in the block ends the command with the matching exit code.
    """
    from pytriton.daemon import connect

    if name is not None and (nodes or key_file):
        raise CliError(ExitCode.USAGE, "use either --fleet, or --nodes and --key-file")
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
            f"no nodes are given: use --nodes dns:NAME or --nodes HOST,HOST, set {ENV_NODES}, or, on Ray, use --fleet NAME",
        )
    return connect(nodes=nodes, key_file=key_file or os.environ.get(ENV_KEY_FILE))


def _progress() -> Any:
    def report(progress: messages.Progress) -> None:
        say(f"  {progress.text}")

    return None if sys.stderr.isatty() else report  # None: a progress bar


@fleet.command()
@command
def balance(
    http: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to serve HTTP on. Empty disables it."),
    ] = "127.0.0.1:8000",
    grpc: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to serve gRPC on. Empty disables it."),
    ] = "127.0.0.1:8001",
    certificate: Annotated[
        str,
        typer.Option(metavar="FILE", help="Certificate and key (PEM) to serve clients with TLS."),
    ] = "",
    node_ca: Annotated[
        str,
        typer.Option(metavar="FILE", help="CA certificates (PEM) of nodes that serve with TLS."),
    ] = "",
    node_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Host name in the certificates of nodes that are given by IP address.",
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            help="Maximum time until a response, and between two responses of a stream, in seconds.",
        ),
    ] = 600.0,
    connections: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of client connections. 0 means as many as the system allows.",
        ),
    ] = 0,
    folder: Annotated[
        Optional[Path],
        typer.Option(
            metavar="PATH",
            help="Directory for HAProxy's files and sockets. Its path must be short.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(min=0.2, help="Interval between checks of the nodes, in seconds."),
    ] = 2.0,
    nodes: NodesFlag = None,
    key_file: KeyFlag = None,
    name: Annotated[
        Optional[str],
        typer.Option("--fleet", metavar="NAME", help="Name of a fleet on Ray, instead of --nodes."),
    ] = None,
    ray_address: RayFlag = "auto",
) -> None:
    """Run HAProxy in front of the nodes, in the foreground. Its configuration is updated when models or nodes
    change.
    """
    from pytriton.fleet.balancer.configuration import BalancerSettings

    settings = BalancerSettings(
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
            run_balancer(view.fetch, settings, folder, interval, view.applied)
        return
    with errors_of_clients():
        run_balancer(_of_nodes(nodes, key_file).status, settings, folder, interval)


for _command in (fleet_on_ray.start, fleet_on_ray.stop, fleet_on_ray.drain):
    fleet.command()(_command)
fleet.command("nodes")(fleet_on_ray.show_nodes)


def run_balancer(
    look: Callable[[], Iterable[NodeStatus]],
    settings: BalancerSettings,
    folder: Path | None,
    interval_s: float,
    applied: Callable[[], None] = lambda: None,
) -> None:
    """Run HAProxy and keep its configuration up to date until SIGTERM or SIGINT; then let it finish its requests.

    Raises:
        HAProxyError: HAProxy is not installed
        PyTritonBadParameterError: a setting is invalid
    """
    from pytriton.fleet.balancer.haproxy import find_haproxy

    program = find_haproxy()
    if folder is not None:
        _balance(look, settings, program, folder.absolute(), interval_s, applied)
        return
    made = Path(tempfile.mkdtemp(prefix="ptb-"))
    try:
        _balance(look, settings, program, made.absolute(), interval_s, applied)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _balance(
    look: Callable[[], Iterable[NodeStatus]],
    settings: BalancerSettings,
    program: str,
    place: Path,
    interval_s: float,
    applied: Callable[[], None],
) -> None:
    from pytriton.fleet.balancer.balance import Balancer
    from pytriton.fleet.balancer.configuration import render
    from pytriton.fleet.balancer.haproxy import HAProxy

    render([], settings, str(place))  # report invalid settings before anything starts
    haproxy = HAProxy(place, program)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    where = ", ".join(
        f"{name} {address}"
        for name, address in (("HTTP", settings.http), ("gRPC", settings.grpc))
        if address
    )
    say(f"HAProxy {program} in {place}: {where}")
    try:
        Balancer(haproxy, settings, look, applied).run(stop, interval_s, say)
    finally:
        haproxy.stop()
