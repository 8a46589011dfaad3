"""Tables that commands print: status, models, doctor, cache, fleet."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytriton._cli.output import visible
from pytriton._cli.persisted_models import progress
from pytriton._protocol import messages
from pytriton._protocol.rates import duration

if TYPE_CHECKING:
    from rich.console import OverflowMethod

    from pytriton._host.doctor.diagnosis import Check
    from pytriton._host.install.cache_usage import CacheEntry
    from pytriton.fleet import FleetModel, NodeStatus

_GOOD = {"ready", "standby", "ok", "serving", "running", "suspended"}
_BAD = {"failed", "problem", "lost", "degraded"}
#: Width without a terminal, at which paths are not broken.
_PIPE_WIDTH = 200
#: Width without a terminal for tables of sentences, which may be broken.
_PIPE_WIDTH_OF_TEXT = 100
#: Maximum number of models that are named in one remark.
_NAMED = 5
#: Shown for a model that has no workers.
_BY_TRITONSERVER = "served by tritonserver"


def retiring(server: messages.ServerInfo) -> list[str]:
    """Return a line for each replaced tritonserver that still has requests or connections."""
    return [
        f"pid {one.pid} was replaced and still has {one.requests} requests on {one.connections} connections; it exits "
        f"when they are finished, or in {duration(max(0.0, one.until - time.time()))}"
        for one in server.retiring
    ]


def print_status(status: messages.Status) -> None:
    """Print the state of the daemon, its tritonserver, and every instance of every model."""
    console = make_console()
    uptime = duration(time.time() - status.started_at)
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        "daemon", state_text(status.state), f"pid {status.pid}, up {uptime}, {status.version}"
    )
    grid.add_row("runtime directory", "", Text(status.runtime_dir, overflow="fold"))
    if status.control_tcp:
        grid.add_row("control", "", Text(status.control_tcp, overflow="fold"))
    server = status.server
    pid = "no process" if server.pid is None else f"pid {server.pid}"
    facts = ", ".join(filter(None, [f"{pid} {server.version}".rstrip(), _frontend(server)]))
    grid.add_row("tritonserver", state_text(server.state), facts)
    for line in retiring(server):
        grid.add_row("", "", line)
    for name, url in [
        *_endpoints(server),
        *(("management", url) for url in status.management_urls),
    ]:
        grid.add_row(f"  {name}", "", Text(url, overflow="fold"))
    if status.openai_url:
        grid.add_row("OpenAI API", "", Text(status.openai_url, overflow="fold"))
    if status.state_dir:
        grid.add_row("state directory", "", Text(status.state_dir, overflow="fold"))
    console.print(grid)
    _print_remarks(console, status)
    if not status.models:
        console.print("no models; register one with `pytriton-daemon register MODULE:ATTRIBUTE`")
        return
    table = make_table(
        "model",
        "instance",
        "state",
        "worker pid",
        "device",
        "lanes",
        "batches",
        "restarts",
        "last exit",
    )
    for model in status.models:
        for one in model.instances:
            table.add_row(
                _safe(model.name), _number(one), _instance_state(model, one), _place(model, one),
                _or_dash(one.device), str(one.lanes), str(one.batches), str(one.restarts),
                _safe(one.last_exit or "-"),
            )  # fmt: skip
        if not model.instances:
            dashes = ["-"] * 5
            last = model.error or _restoring(model)
            last = last or (_BY_TRITONSERVER if _is_tritonservers(model) else "-")
            table.add_row(_safe(model.name), "-", state_text(model.state), *dashes, _safe(last))
    console.print(table)


def _restoring(model: messages.ModelInfo) -> str:
    """Describe how long a model has been loading; "" if it is not being loaded."""
    if model.state not in ("restoring", "loading"):
        return ""
    if not model.loading_since:
        return "waiting for its turn"
    return f"loading for {duration(time.time() - model.loading_since)}"


def _safe(text: str, overflow: OverflowMethod | None = None) -> Text:
    """Return text from another source as a table cell, with control characters escaped."""
    return Text(visible(text, keep="\n"), overflow=overflow)


def _print_remarks(console: Console, status: messages.Status) -> None:
    for one in status.memory:
        waits = f"; {one.waiting} models wait" if one.waiting else ""
        used = f"{one.used / (1 << 20):,.0f} of {one.budget / (1 << 20):,.0f} MiB"
        console.print(Text(f"{one.resource}: {used} in use{waits}"))
    said: dict[str, list[str]] = {}
    for model in status.models:
        if model.scaling:
            said.setdefault(model.scaling, []).append(model.name)
    for text, names in said.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        console.print(Text(f"{', '.join(names[:_NAMED])}{more}: {text}"))
    restoring = progress(status.models, time.time())
    if restoring:
        console.print(Text(visible(restoring)))
    for problem in status.problems:
        console.print(Text(visible(problem, keep="\n"), style="red"))
    for model in status.models:
        said_already = any(one.startswith(f"model {model.name}: ") for one in status.problems)
        if model.instances and model.error and not said_already:
            text = f"model {model.name} is {model.state}: {model.error}"
            console.print(Text(visible(text, keep="\n"), style="red"))


def endpoints(server: messages.ServerInfo) -> list[str]:
    """Return a line such as `HTTP http://…` for each endpoint that is served."""
    return [f"{name} {url}" for name, url in _endpoints(server)]


def print_repository(models: Sequence[messages.RepositoryModel]) -> None:
    """Print the models in the daemon's repositories."""
    console = make_console()
    if not models:
        console.print(
            "no models: the directories of --model-repository are empty, or the daemon was started without that flag; "
            "`pytriton-daemon status` shows directories that cannot be read"
        )
        return
    table = make_table("model", "versions", "state", "served by", "repository", "reason")
    for one in models:
        versions = ", ".join(map(str, one.versions))
        table.add_row(
            _safe(one.name), _or_dash(versions or None), state_text(one.state), _or_dash(one.served_by or None),
            _safe(one.repository, overflow="fold"), _safe(one.reason, overflow="fold"),
        )  # fmt: skip
    console.print(table)


def print_models(models: Sequence[messages.ModelInfo]) -> None:
    """Print one line for each registered model."""
    if not models:
        make_console().print("no models")
        return
    from pytriton.foreground import served_urls

    table = make_table("model", "version", "state", "instances", "url")
    urls = served_urls((one.url, one.route) for one in models)
    for model, url in zip(models, urls):
        ready = sum(one.state == "ready" for one in model.instances)
        count = (
            _BY_TRITONSERVER
            if _is_tritonservers(model)
            else f"{ready}/{len(model.instances)} ready"
        )
        versions = ", ".join(map(str, model.versions or [model.version]))
        table.add_row(_safe(model.name), versions, state_text(model.state), count, Text(url))
    console = make_console()
    console.print(table)
    for model in models:
        if model.error:
            line = Text(visible(f"{model.name} is {model.state}: {model.error}", keep="\n"))
            console.print(line, style="red", soft_wrap=not console.is_terminal)


def print_checks(checks: Sequence[Check]) -> None:
    """Print the results of `doctor` as a table."""
    table = make_table("check", "result", "details", "fix")
    for check in checks:
        mend = Text(check.mend, overflow="fold")
        seen = Text(check.detail, overflow="fold")
        table.add_row(Text(check.name), state_text(check.status), seen, mend)
    make_console(_PIPE_WIDTH_OF_TEXT).print(table)


def print_cache(entries: Sequence[CacheEntry], freed: int) -> None:
    """Print the entries of the cache directory, the total size of each kind, and the space that was freed."""
    table = make_table("kind", "entry", "size", "last used", "state")
    for entry in entries:
        days = max(0, int((time.time() - entry.used_at) // 86400))
        used = "today" if days == 0 else f"{days} days ago" if days > 1 else "yesterday"
        path = Text(str(entry.path), overflow="fold")
        table.add_row(entry.kind, path, _mib(entry.size), used, entry.state)
    console = make_console()
    if entries:
        console.print(table)
    sizes: dict[str, int] = {}
    for entry in entries:
        sizes[entry.kind] = sizes.get(entry.kind, 0) + entry.size
    parts = [f"{kind} {_mib(size)}" for kind, size in sizes.items()]
    total = f"{_mib(sum(sizes.values()))} in all" + (f": {', '.join(parts)}" if parts else "")
    console.print(Text(total + (f"; {_mib(freed)} freed" if freed else "")))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def make_console(pipe_width: int = _PIPE_WIDTH) -> Console:
    """Return a console for tables. If its output is not a terminal, it is `pipe_width` wide."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = pipe_width
    return console


def make_table(*columns: str) -> Table:
    """Return an empty table in the style of all commands."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _frontend(server: messages.ServerInfo) -> str:
    """Return the name of the frontend; "" if the daemon does not report it."""
    if not server.binary:
        return ""
    return (
        "native frontend" if server.binary.endswith("/pytriton-frontend") else "NVIDIA's frontend"
    )


def _endpoints(server: messages.ServerInfo) -> list[tuple[str, str]]:
    pairs = [("HTTP", server.http_url), ("gRPC", server.grpc_url), ("metrics", server.metrics_url)]
    return [(name, url) for name, url in pairs if url]


def state_text(state: str) -> Text:
    """Return a state as colored text: green is good, red is bad, yellow is everything else."""
    style = "green" if state in _GOOD else "red" if state in _BAD else "yellow"
    return Text(state, style=style)


def _instance_state(model: messages.ModelInfo, instance: messages.InstanceInfo) -> Text:
    """Return the state of an instance; add the state of its model if that is not_ready or degraded."""
    if model.state in ("not_ready", "degraded"):
        text = state_text(instance.state)
        return text.append(", model ").append_text(state_text(model.state))
    return state_text(
        "standby"
        if instance.standby and instance.lanes == 0 and instance.state == "ready"
        else instance.state
    )


def _place(model: messages.ModelInfo, instance: messages.InstanceInfo) -> str:
    """Return the worker's pid, with a mark if the worker is a thread of the process that registered the model."""
    thread = " (thread)" if model.isolation == "thread" and instance.pid is not None else ""
    return f"{_or_dash(instance.pid)}{thread}"


def _is_tritonservers(model: messages.ModelInfo) -> bool:
    return model.served_by == "tritonserver"


def _number(instance: messages.InstanceInfo) -> str:
    """Return an instance's number, with the version (such as `0 of v2`) if each version has its own workers."""
    return f"{instance.index}" + (f" of v{instance.version}" if instance.version else "")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def print_nodes(nodes: Sequence[NodeStatus], leaving: Collection[str] = ()) -> None:
    """Print one line for each node of a fleet. Nodes in `leaving` are marked as draining."""
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
    """Print one line for each model of a fleet."""
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
