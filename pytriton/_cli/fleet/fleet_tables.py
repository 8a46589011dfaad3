"""Tables of nodes and of their models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pytriton._cli.log_lines import visible
from pytriton._cli.tables import make_console, make_table, state_text

if TYPE_CHECKING:
    from pytriton.fleet import FleetModel, NodeStatus


def print_nodes(nodes: Sequence[NodeStatus], leaving: Collection[str] = ()) -> None:
    """Print one line for each node; nodes in `leaving` are being drained."""
    table = make_table("node", "daemon", "tritonserver", "models", "instances", "HTTP", "problem")
    for one in nodes:
        if one.status is None:
            first = "; ".join(_of_leaving(one, leaving, one.error.partition("\n")[0]))
            table.add_row(
                Text(one.node), state_text("lost"), "-", "-", "-", "-", Text(first, overflow="fold")
            )
            continue
        status = one.status
        instances = [
            each for model in status.models for each in model.instances if not each.standby
        ]
        ready = sum(each.state == "ready" for each in instances)
        table.add_row(
            Text(one.node), state_text(status.state), state_text(status.server.state),
            str(len(status.models)), f"{ready}/{len(instances)} ready", Text(status.server.http_url or "-"),
            Text("; ".join(_of_leaving(one, leaving, *status.problems)) or "-", overflow="fold"),
        )  # fmt: skip
    make_console().print(table)


def _of_leaving(node: NodeStatus, leaving: Collection[str], *problems: str) -> list[str]:
    return ["draining", *problems] if node.node in leaving else list(problems)


def print_fleet_models(models: Sequence[FleetModel]) -> None:
    """Print one line for each model."""
    if not models:
        make_console().print("no models")
        return
    table = make_table("model", "state", "nodes", "instances", "missing on")
    for one in models:
        count = f"{len(one.by_node)}/{len(one.by_node) + len(one.missing)}"
        tried = sum(info.lease is not None for info in one.by_node.values())
        count += f", {tried} provisional" if tried else ""
        missing = Text(", ".join(one.missing) or "-", overflow="fold")
        ready = f"{one.ready}/{one.instances} ready"
        table.add_row(Text(one.name), state_text(one.state), count, ready, missing)
    console = make_console()
    console.print(table)
    for one in models:
        for node, why in one.reasons.items():
            text = visible(f"{one.name} is {one.by_node[node].state} on {node}: {why}", keep="\n")
            console.print(Text(text), style="red", soft_wrap=not console.is_terminal)
