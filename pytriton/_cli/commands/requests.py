"""The commands `requests`, `access-log` and `profile`: individual requests of a model, and profiles of its workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import JsonFlag, RuntimeDirFlag
from pytriton._cli.output import print_json, visible
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode

_MS = 1e6
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL")]


@command
def requests(
    model: ModelArgument, as_json: JsonFlag = False, runtime_dir: RuntimeDirFlag = None
) -> None:
    """Show a model's slowest requests in the last hour, and its most recent failed requests."""
    from pytriton._cli import daemon_connection

    answer: Any = daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), messages.GetRequests(model)
    )
    if as_json:
        print_json(answer)
        return
    typer.echo(f"slowest of the last hour ({len(answer.slowest)}):")
    for line in table(answer.slowest):
        typer.echo(line)
    typer.echo(f"last failed ({len(answer.failed)}):")
    for line in table(answer.failed):
        typer.echo(line)
    state = f"on, {answer.file}" if answer.access_log else "off"
    typer.echo(f"access log: {state}")


@command
def access_log(
    model: ModelArgument,
    state: Annotated[
        Optional[str], typer.Argument(metavar="on|off", help="Turn the access log on or off.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of requests.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new requests.")
    ] = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Turn a model's access log on or off. Without on or off, show its last requests."""
    from pytriton._cli import daemon_connection
    from pytriton._host.log_files import follow as follow_file
    from pytriton._host.log_files import tail

    rundir = daemon_connection.runtime_dir(runtime_dir)
    if state is not None:
        if state not in ("on", "off"):
            raise CliError(
                ExitCode.USAGE, f"{state}: must be 'on' or 'off'; omit it to see requests"
            )
        daemon_connection.ask(rundir, messages.LogRequests(model, state == "on"))
        typer.echo(f"the access log of {model} is {state}")
        return
    answer: Any = daemon_connection.ask(rundir, messages.GetRequests(model))
    file = rundir.access_log_file(model)
    if not answer.access_log and not file.exists():
        raise CliError(
            ExitCode.USAGE,
            f"{model} has no access log; turn it on with `pytriton-daemon access-log {model} on`",
        )
    for line in follow_file(file, lines) if follow else tail(file, lines):
        typer.echo(line if as_json else _shown(line))


@command
def profile(
    model: ModelArgument,
    seconds: Annotated[
        int, typer.Option(min=1, max=300, help="Duration of the profile, in seconds.")
    ] = 10,
    instance: Annotated[
        Optional[int], typer.Option(help="Instance to profile. Default: the first that serves.")
    ] = None,
    output: Annotated[
        Optional[Path],
        typer.Option(
            "--output",
            "-o",
            help="File for the profile. .svg: a flame graph; .json: for speedscope; .txt: the stacks.",
        ),
    ] = None,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Profile a running worker: show the time spent in the callable, in libraries and in pytriton, and the idle
    time.
    """
    from msgspec import structs

    from pytriton._cli import daemon_connection
    from pytriton.profiles import Profile

    if output is not None and output.suffix not in (".svg", ".json", ".txt"):
        raise CliError(ExitCode.USAGE, f"{output}: use a name that ends in .svg, .json or .txt")
    message = messages.ProfileWorker(model, seconds, instance)
    answer: Any = daemon_connection.ask(
        daemon_connection.runtime_dir(runtime_dir), message, timeout_s=None
    )
    found = Profile(model=model, **structs.asdict(answer))
    if output is not None:
        writer = {".svg": found.svg, ".json": found.speedscope, ".txt": found.collapsed}
        output.write_text(writer[output.suffix]())
    if as_json:
        result = {"shares": found.shares(), "hottest": dict(found.hottest())}
        typer.echo(msgspec.json.encode({**result, "pid": found.pid, "instance": found.instance}))
        return
    typer.echo(
        f"{model}, instance {found.instance}, worker {found.worker} (pid {found.pid}), {seconds} s:"
    )
    for kind, share in found.shares().items():
        typer.echo(f"  {share:6.1%}  {kind}")
    hottest = found.hottest()
    if hottest:
        typer.echo("most often in:")
    for name, share in hottest:
        typer.echo(f"  {share:6.1%}  {visible(name)}")


def table(entries: Sequence[messages.RequestEntry]) -> list[str]:
    """Return a header and one line of text for each request; [] if there are none."""
    return [_HEAD, *map(entry_line, entries)] if entries else []


_HEAD = (
    f"  {'time':19}  {'instance':>8}  {'status':13}  {'call ms':>10}  {'wait ms':>10}  {'requests':>8}  "
    f"{'rows':>6}  {'in':>9}  {'out':>9}  id, error"
)


def entry_line(entry: messages.RequestEntry) -> str:
    """Return a request as one line of text."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    wait = "" if entry.queue_ns is None else f"{entry.queue_ns / _MS:.3f}"
    out = "" if entry.bytes_out is None else str(entry.bytes_out)
    name = f"{entry.id}  {entry.error}".rstrip()
    return (
        f"  {when}  {entry.instance:>8}  {entry.status:13}  {entry.compute_ns / _MS:>10.3f}  {wait:>10}  "
        f"{entry.batch_requests:>8}  {entry.batch_rows:>6}  {entry.bytes_in:>9}  {out:>9}  {visible(name)}"
    )


def _shown(line: str) -> str:
    try:
        return entry_line(msgspec.json.decode(line, type=messages.RequestEntry))
    except msgspec.DecodeError:
        return visible(line)
