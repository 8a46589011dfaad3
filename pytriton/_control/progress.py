"""The progress of a registration: a bar on a terminal, or events for a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional, Union

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonBadParameterError

Report = Callable[[messages.Progress], None]


@contextmanager
def reporter(progress: Union[bool, Report, None], model_name: str) -> Iterator[Optional[Report]]:
    """Yield the function to which `register` reports its progress.

    Args:
        progress: a callable receives the events; None shows them if standard error is a terminal, True
            always, False never
        model_name: the name to show

    Raises:
        PyTritonBadParameterError: `progress` is something else.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
    elif progress is None or progress is True:
        with _bar(model_name) as report:
            yield report
    else:
        raise PyTritonBadParameterError(
            f"progress={progress!r}: use None, True, False or a callable that takes each event"
        )


def step_reporter(report: Optional[Report]) -> Callable[[str], None]:
    """Return a function that reports the steps before the request, such as the creation of an environment."""

    def say(text: str) -> None:
        if report is not None:
            report(messages.Progress("environment", text))

    return say


@contextmanager
def _bar(model_name: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[model]}: {task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending the callable", total=None, model=model_name)

        def report(event: messages.Progress) -> None:
            bar.update(
                task, description=event.text, completed=event.done, total=event.total or None
            )

        yield report
