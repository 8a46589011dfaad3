"""`pytriton-daemon fleet start`, `stop`, `nodes` and `drain`: commands for fleets on a Ray cluster only."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from pytriton._cli.errors import command, errors_of_clients
from pytriton._cli.flags import JsonFlag, print_json

RayFlag = Annotated[
    str, typer.Option("--ray-address", metavar="ADDRESS", help="The Ray cluster's address.")
]
NameFlag = Annotated[str, typer.Option("--fleet", metavar="NAME", help="The fleet's name.")]


@command
def start(
    ray_address: RayFlag = "auto",
    name: NameFlag = "default",
    nodes: Annotated[
        Optional[int],
        typer.Option(
            min=1,
            help="Maximum number of nodes to use. Default: all. Surplus nodes are drained.",
        ),
    ] = None,
    runtime_dir: Annotated[
        Optional[str],
        typer.Option(metavar="PATH", help="Directory for the runtime directories of the daemons."),
    ] = None,
    flags: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[-- FLAGS]", help="Flags of `pytriton-daemon start` for each daemon."
        ),
    ] = None,
) -> None:
    """Start a fleet on a Ray cluster: a controller, and a daemon on each node. Both outlive this command.

    For a running fleet, change its number of nodes; flags apply to daemons that start later.
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
            f"{which} surplus: their models are moved to other nodes, then they are released"
        )


@command
def stop(ray_address: RayFlag = "auto", name: NameFlag = "default") -> None:
    """Stop a fleet on a Ray cluster: its daemons finish in-flight requests, then all its processes exit."""
    from pytriton.fleet.on_ray.lifecycle import stop_fleet

    with errors_of_clients():
        stop_fleet(name, ray_address)
    typer.echo(f"stopped the fleet {name!r}")


@command
def show_nodes(
    ray_address: RayFlag = "auto", name: NameFlag = "default", as_json: JsonFlag = False
) -> None:
    """Show the nodes of a fleet on a Ray cluster, and what each serves."""
    from pytriton._cli.fleet.fleet_options import print_nodes
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
            help="Node id, or its beginning. Default: the node that this command runs on.",
        ),
    ] = None,
    ray_address: RayFlag = "auto",
    name: NameFlag = "default",
    timeout: Annotated[
        float, typer.Option(min=1, help="Maximum time until the node is empty, in seconds.")
    ] = 600,
) -> None:
    """Drain a node of a fleet on Ray: its instances are moved to other nodes first; no request fails."""
    from pytriton.daemon import connect

    with errors_of_clients():
        drained = connect(fleet=name, ray_address=ray_address).drain(node, timeout)
    typer.echo(f"node {drained} serves nothing")
