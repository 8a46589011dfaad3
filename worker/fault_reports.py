"""A worker's reports of errors: a process prints them for the daemon's log, a thread logs them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

import cloudpickle

from pytriton._protocol.errors import described, for_client, sendable
from pytriton._protocol.lanes.request_names import trace_id
from pytriton._protocol.records import encoded, record_of
from pytriton.worker.callable_errors import is_cancellation
from pytriton.worker.request_ids import ids_of

if TYPE_CHECKING:
    from pytriton._protocol.lanes.lane_messages import Batch

_here = threading.local()
#: How a callable comes to be loaded and called; no matter of its owner's.
_WAY = (
    *(
        os.path.dirname(os.path.abspath(path)) + os.sep
        for path in (os.path.dirname(__file__), cloudpickle.__file__)
    ),
    os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "asyncio") + os.sep,
    "<frozen importlib",
)
#: What a decorator of ours makes of a callable travels, with the name of the file that the registrant has it from.
_DECORATORS = os.path.join(os.sep, "pytriton", "decorators", "wrapping.py")
#: Characters of a line: the daemon's log cuts lines of more than 64 KiB.
_LONGEST_LINE = 10_000
#: What is added to the text of a `CancelledError`, which has none as a rule.
_CANCELLED = (
    " (what the callable awaited was cancelled: a task, or a call of a channel that was closed)"
)
#: Characters of a traceback that is sent.
_MOST_TRACEBACK = 1 << 18


def report_to(logger: logging.Logger, model: str) -> None:
    """Have this thread's reports about a model go to a logger: the process's output belongs to others."""
    _here.logger, _here.model = logger, model


def report_error(
    error: BaseException,
    what: str = "its callable failed",
    batches: Sequence[Batch] = (),
    ids: Sequence[str] | None = None,
) -> None:
    """Report an exception with its traceback, and with the ids of the requests that failed by it: one record."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if ids is None:
        ids = [one for batch in batches for one in ids_of(batch)]
    if logger is None:
        record = record_of(error, _traceback(error), what, list(ids), list(_trace_ids(batches)))
        line, was_cut = encoded(record)
        _write(line.decode(), sys.__stderr__ or sys.stderr)
        if was_cut:
            _print(record.exception)
        return
    logger.error(
        "model %s: %s",
        _here.model,
        what,
        exc_info=(type(error), error, error.__traceback__),
        extra={"request_ids": ids},
    )


def told(error: BaseException) -> str:
    """Return the text that a client gets of an exception that is reported, cut to its limit."""
    text = described(error)
    return for_client(text.rstrip(": ") + _CANCELLED if is_cancellation(error) else text)


def cut_for_client(text: str) -> str:
    """Return so much of an error's text as reaches a client; report all of it where that is not all."""
    cut = for_client(text)
    if len(cut) < len(text):
        report(text)
    return cut


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback for the registrant, or so much of it as a control message carries."""
    text = sendable(_traceback(error))
    more = len(text) - _MOST_TRACEBACK
    return (
        f"{text[:_MOST_TRACEBACK]}\n[… {more} characters more are in the model's log]"
        if more > 0
        else text
    )


def _traceback(error: BaseException) -> str:
    """Return an exception's traceback, whatever its own methods do."""
    try:
        lines = [*_from_users_frame(error).format()]
    except Exception:  # of a property of it, say
        lines = [*traceback.format_tb(error.__traceback__), described(error), "\n"]
    return "".join(lines)


def _from_users_frame(error: BaseException) -> traceback.TracebackException:
    """Return an exception's traceback that begins where the user's code does, not with how we came to call it."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting: list[traceback.TracebackException | None] = [whole]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        users = next((at for at, frame in enumerate(one.stack) if not _is_way(frame.filename)), 0)
        del one.stack[:users]
        waiting += [one.__cause__, one.__context__]
    return whole


def _is_way(file: str) -> bool:
    return file.startswith(_WAY) or file.endswith(_DECORATORS)


def _print(text: str) -> None:
    """Print to the log; a line that it would cut goes on in the next one."""
    for line in text.splitlines():
        for start in range(0, max(1, len(line)), _LONGEST_LINE):
            _write(line[start : start + _LONGEST_LINE], sys.__stderr__ or sys.stderr)


def report_threads() -> None:
    """From now on report what ends a thread of this process, which Python only prints."""

    def hook(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
            name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
            report_error(ended.exc_value, f"{name} of it failed")

    threading.excepthook = hook


def note(text: str) -> None:
    """Report something that is as it should be."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        _write(text, sys.__stdout__ or sys.stdout)
        return
    logger.info("model %s: %s", _here.model, text)


def report(text: str) -> None:
    """Report something that somebody should look at."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        _print(text)
        return
    logger.warning("model %s: %s", _here.model, text)


def _write(text: str, stream: TextIO | None) -> None:
    """Write a line to an output of the process's own, wherever a callable has led those of Python.

    One that it has closed takes no reports: that is no reason for the worker to end.
    """
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(f"{text}\n")
            stream.flush()


def _trace_ids(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield the trace of each traced request, once."""
    contexts: list[str | None] = []
    for batch in batches:
        contexts += batch.trace.contexts if batch.trace is not None else []
        contexts += [request.details.trace for request in batch.requests if request.details]
    for context in dict.fromkeys(contexts):
        found = trace_id(context)
        if found:
            yield found
