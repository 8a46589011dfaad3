"""The flags of `pytriton-daemon fleet register` for Ray: resources of an instance, environment of its workers."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from rich.text import Text

from pytriton._cli.errors import CliError
from pytriton._cli.log_lines import visible
from pytriton._cli.tables import make_console, make_table, state_text
from pytriton._protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from pytriton.fleet import FleetModel, NodeStatus


def options_of_ray(
    num_cpus: Optional[float],
    num_gpus: Optional[float],
    resources: Optional[str],
    runtime_env: Optional[str],
    runtime_env_json: Optional[str],
) -> dict[str, Any]:
    """Return `resources` and `runtime_env` for `RayFleetClient.register`, if flags set them.

    Args:
        num_cpus, num_gpus: for each instance
        resources: all resources that Ray reserves, as JSON
        runtime_env: a file, YAML or JSON
        runtime_env_json: the same as JSON text

    Raises:
        CliError: something cannot be read, or is set twice
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
        more = ". It takes a file; --runtime-env-json takes the text itself" if "{" in name else ""
        raise CliError(ExitCode.USAGE, f"{flag} cannot be read: {error}{more}") from None
    try:
        return _a_dict(flag, json.loads(text))
    except ValueError:
        pass
    try:
        import yaml  # a dependency of Ray
    except ImportError:
        raise CliError(
            ExitCode.USAGE, f"{flag} is not JSON, and YAML needs PyYAML, which comes with Ray"
        ) from None
    try:
        return _a_dict(flag, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise CliError(ExitCode.USAGE, f"{flag} is neither JSON nor YAML: {error}") from None


def _a_dict(flag: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise CliError(
            ExitCode.USAGE,
            f"{flag} must be an object of names and values, not {type(found).__name__}",
        )
    return found


# ── Tables of nodes and of their models ──


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
