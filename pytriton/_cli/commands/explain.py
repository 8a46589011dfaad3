"""The commands `explain` and `events`: the reasons for a model's state, and the event log."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Optional

import typer

from pytriton._cli.errors import CliError, command
from pytriton._cli.flags import JsonFlag, RuntimeDirFlag
from pytriton._cli.output import print_json, visible
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir

#: Interval between requests for new events.
_POLL_S = 1.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

FollowFlag = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")]
LinesFlag = Annotated[int, typer.Option("--lines", "-n", min=0, max=1000, help="Number of events.")]


@command
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    lines: LinesFlag = 30,
    follow: FollowFlag = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """Explain a model's state: show the reason, the fix, and the most recent events."""
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
    model: Annotated[
        Optional[str], typer.Argument(metavar="MODEL", help="Only events about this model.")
    ] = None,
    kind: Annotated[
        Optional[list[str]], typer.Option(help="Only events of this kind. May be repeated.")
    ] = None,
    since: Annotated[
        Optional[str],
        typer.Option(
            metavar="TIME",
            help="Only events since: 30m, 2h or 7d (ago), or a time such as 2026-11-22T10:00.",
        ),
    ] = None,
    lines: LinesFlag = 100,
    follow: FollowFlag = False,
    as_json: JsonFlag = False,
    runtime_dir: RuntimeDirFlag = None,
) -> None:
    """List the daemon's events: registrations, replacements, scaling, and their results."""
    from pytriton._cli import daemon_connection

    rundir, begun = daemon_connection.runtime_dir(runtime_dir), time.time()
    after = 0.0 if since is None else parse_since(since, begun)
    asked = messages.GetEvents(model, kind or [], after, 0, lines)
    answer: Any = daemon_connection.ask(rundir, asked)
    _print(answer.events, as_json)
    if follow:
        _follow(rundir, messages.GetEvents(model, kind or [], begun), answer.events, as_json)


def explanation_lines(answer: messages.Explanation) -> list[str]:
    """Return the lines of an explanation: the verdict, findings with their fixes, and the events."""
    lines = [visible(answer.verdict)]
    for number, finding in enumerate(answer.findings):
        when = f" (since {_time(finding.at)})" if finding.at is not None else ""
        if number or finding.text not in answer.verdict:
            lines.append(f"  {finding.severity}: {visible(finding.text)}{when}")
        if finding.advice:
            lines.append(f"    Fix: {visible(finding.advice)}")
    if answer.events:
        lines.append("")
    return [*lines, *map(event_line, answer.events)]


def event_line(event: messages.Event) -> str:
    """Return an event as one line of text."""
    about = event.model + ("" if event.instance is None else f"/{event.instance}")
    numbers = " ".join(f"{name}={value:g}" for name, value in event.numbers.items())
    worker = f"worker {event.worker}" if event.worker else ""
    by = f"by {event.who}" if event.who else ""
    rest = "; ".join(part for part in (by, worker, event.reason, numbers) if part)
    return visible(
        f"{_time(event.at)}  {about or 'daemon'}  {event.kind}" + (f": {rest}" if rest else "")
    )


def parse_since(text: str, now: float) -> float:
    """Parse the value of `--since`, and return it in seconds since the epoch.

    Raises:
        CliError: the text is neither a duration nor a time.
    """
    ago = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if ago is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # OSError: beyond the range of the system's clock
        raise CliError(
            ExitCode.USAGE,
            f"--since {text}: use a duration (30m, 2h, 7d) or a time such as 2026-11-22T10:00",
        ) from None


def _follow(
    rundir: RuntimeDir, asked: messages.GetEvents, shown: Sequence[messages.Event], as_json: bool
) -> None:
    """Print the events after the ones already shown, or all new events if none were shown, until interrupted."""
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
