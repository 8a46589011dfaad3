"""`pytriton-daemon explain` and `events`: why a model is as it is, and what was decided."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import JsonFlag, RuntimeDirFlag, print_json
from pytriton._cli.log_lines import visible
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

#: How often new events are asked for.
_POLL_S = 1.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

FollowFlag = Annotated[bool, typer.Option("--follow", "-f", help="Go on as events come.")]
LinesFlag = Annotated[int, typer.Option("--lines", "-n", min=0, max=1000, help="Events to show.")]


@command
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    lines: LinesFlag = 30,
    follow: FollowFlag = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Say why a model is as it is, what to do, and what was decided about it."""
    from pytriton._cli import daemon_connection

    rundir, begun = daemon_connection.runtime_dir(runtime_dir), time.time()
    answer: Any = daemon_connection.ask(rundir, messages.Explain(model, lines))
    if as_json:
        print_json(answer)
    else:
        for line in explanation_lines(answer):
            typer.echo(line)
    if follow:
        _follow(rundir, messages.GetEvents(model, since=begun), answer.events, as_json)


@command
def events(
    model: Annotated[Optional[str], typer.Argument(metavar="MODEL")] = None,
    kind: Annotated[
        Optional[list[str]], typer.Option(help="Only events of this kind; repeat it for more.")
    ] = None,
    since: Annotated[
        Optional[str],
        typer.Option(metavar="TIME", help="30m, 2h, 7d, or a time as 2026-11-22T10:00."),
    ] = None,
    lines: LinesFlag = 100,
    follow: FollowFlag = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """List what was decided: who registered, replaced, scaled what, and what became of it."""
    from pytriton._cli import daemon_connection

    rundir, begun = daemon_connection.runtime_dir(runtime_dir), time.time()
    after = 0.0 if since is None else moment(since, begun)
    asked = messages.GetEvents(model, kind or [], after, 0, lines)
    answer: Any = daemon_connection.ask(rundir, asked)
    _print(answer.events, as_json)
    if follow:
        _follow(rundir, messages.GetEvents(model, kind or [], begun), answer.events, as_json)


def explanation_lines(answer: messages.Explanation) -> list[str]:
    """Return an explanation as people read it: the verdict, what to do, what else there is, the events."""
    lines = [visible(answer.verdict)]
    for number, finding in enumerate(answer.findings):
        when = f" (since {_time(finding.at)})" if finding.at is not None else ""
        if number or finding.text not in answer.verdict:
            lines.append(f"  {finding.severity}: {visible(finding.text)}{when}")
        if finding.advice:
            lines.append(f"    do: {visible(finding.advice)}")
    if answer.events:
        lines.append("")
    return [*lines, *map(event_line, answer.events)]


def event_line(event: messages.Event) -> str:
    """Return an event as people read it."""
    about = event.model + ("" if event.instance is None else f"/{event.instance}")
    numbers = " ".join(f"{name}={value:g}" for name, value in event.numbers.items())
    worker = f"worker {event.worker}" if event.worker else ""
    by = f"by {event.who}" if event.who else ""
    rest = "; ".join(part for part in (by, worker, event.reason, numbers) if part)
    return visible(
        f"{_time(event.at)}  {about or 'daemon'}  {event.kind}" + (f": {rest}" if rest else "")
    )


def moment(text: str, now: float) -> float:
    """Return the moment that `--since` names, seconds since the epoch.

    Raises:
        CliError: it names none.
    """
    ago = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if ago is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # the clock of the system does not go so far
        raise CliError(
            ExitCode.USAGE,
            f"--since {text}: give how long ago (30m, 2h, 7d) or a time such as 2026-11-22T10:00",
        ) from None


def _follow(
    rundir: RuntimeDir, asked: messages.GetEvents, shown: Sequence[messages.Event], as_json: bool
) -> None:
    """Go on with what comes after the events that were shown; where none was, with what comes from now on."""
    from pytriton._cli import daemon_connection

    after = max((event.serial for event in shown), default=0)
    while True:
        time.sleep(_POLL_S)
        since = 0.0 if after else asked.since
        message = messages.GetEvents(asked.model, asked.kinds, since, after, 1000)
        answer: Any = daemon_connection.ask(rundir, message)
        _print(answer.events, as_json)
        after = max((event.serial for event in answer.events), default=after)


def _print(some: Sequence[messages.Event], as_json: bool) -> None:
    import msgspec

    for event in some:
        typer.echo(msgspec.json.encode(event).decode() if as_json else event_line(event))


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
