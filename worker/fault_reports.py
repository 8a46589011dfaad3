"""Failures of the callable: which exceptions count as failures, the error texts for clients, and the reports in the
model's log.

A worker process prints reports, which the daemon writes to the log. A worker thread passes them to a logger.

`asyncio.CancelledError` counts as a failure of the callable, although it is not an `Exception`: a callable that nobody
cancelled can raise it by awaiting a cancelled task, a call on a closed grpc.aio channel, or a cancelled anyio scope. Any
other exception that is not an `Exception`, such as `SystemExit`, ends the worker from any thread or event loop.
"""

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

from pytriton._protocol.errors import described, for_client, members, triton_code, with_id
from pytriton._protocol.lanes.lane_messages import ResponseDetails, ResponseRef
from pytriton._protocol.lanes.request_records import ids_of, trace_id
from pytriton._protocol.log_lines import encoded, record_of
from pytriton._protocol.messages import sendable
from pytriton.exceptions import HTTPError, PyTritonUnrecoverableError
from pytriton.worker import gpu_faults

if TYPE_CHECKING:
    from pytriton._protocol.lanes.lane_messages import Batch


_here = threading.local()
#: Folders and files that load and call the callable. Tracebacks omit their frames.
_MACHINERY = (
    *(
        os.path.dirname(os.path.abspath(path)) + os.sep
        for path in (os.path.dirname(__file__), cloudpickle.__file__)
    ),
    os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "asyncio") + os.sep,
    "<frozen importlib",
)
#: Functions of our decorators keep the file name that they had on the registrant's machine.
_DECORATORS = os.path.join(os.sep, "pytriton", "decorators", "wrapping.py")
#: Maximum number of characters of a printed line, because the daemon's log cuts lines at 64 KiB.
_MAX_LINE = 10_000
#: Appended to the text of a `CancelledError`, which is usually empty.
_CANCELLED = (
    " (something that the callable awaited was cancelled: a task, or a call on a closed channel)"
)
#: Maximum number of characters of a traceback that is sent.
_MAX_TRACEBACK = 1 << 18


class ExecutionTimeout(TimeoutError):
    """A batch exceeded the model's `execution_timeout_s`; the text includes the limit."""


def callable_errors() -> tuple[type[BaseException], ...]:
    """Return the exception types that count as a failure of the callable, for use in an `except` clause.

    Python evaluates an `except` clause only when an exception was raised. Importing asyncio takes 30 ms, and while it has
    not been imported, nothing can raise its exceptions.
    """
    exceptions = sys.modules.get("asyncio.exceptions")
    return (Exception,) if exceptions is None else (Exception, exceptions.CancelledError)


def is_cancellation(error: BaseException) -> bool:
    """Return True if an exception is an `asyncio.CancelledError`."""
    return isinstance(error, callable_errors()) and not isinstance(error, Exception)


def reason(error: BaseException) -> BaseException:
    """Return the cause of a failure.

    This is the exception itself, unless it is an exception group with an unrecoverable member, or with only one member:
    then it is that member.
    """
    found = members(error)
    for one in found:
        if isinstance(one, PyTritonUnrecoverableError):
            return one
    return found[0] if len(found) == 1 else error


# ── reports ───────────────────────────────────────────────────────────────────────────────────────


def report_to(logger: logging.Logger, model: str) -> None:
    """Send this thread's reports about a model to a logger, because the registrant owns the process's output."""
    _here.logger, _here.model = logger, model


def report_error(
    error: BaseException,
    what: str = "the callable failed",
    batches: Sequence[Batch] = (),
    ids: Sequence[str] | None = None,
) -> None:
    """Write one record with an exception, its traceback, and the ids of the requests that failed.

    A failure of a GPU is a reason to replace the worker, unless it is a thread of the registrant's process.
    """
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        gpu_faults.note(error)
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


def client_text(error: BaseException) -> str:
    """Return the error text that clients get for an exception, cut to the maximum length of a response."""
    text = described(error)
    return for_client(text.rstrip(": ") + _CANCELLED if is_cancellation(error) else text)


def response_to_error(error: BaseException, request_id: str) -> ResponseRef:
    """Return the response to a request that failed individually. An `HTTPError` keeps its own text and code."""
    if isinstance(error, HTTPError):
        return ResponseRef([], for_client(str(error)), ResponseDetails(triton_code(error.status)))
    return ResponseRef([], with_id(client_text(error), request_id))


def cut_for_client(text: str) -> str:
    """Cut an error text to the maximum length of a response. If that removes anything, report the full text."""
    cut = for_client(text)
    if len(cut) < len(text):
        report(text)
    return cut


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback for the registrant, cut to the maximum length of a control message."""
    text = sendable(_traceback(error))
    more = len(text) - _MAX_TRACEBACK
    return (
        f"{text[:_MAX_TRACEBACK]}\n[… {more} more characters in the model's log]"
        if more > 0
        else text
    )


def _traceback(error: BaseException) -> str:
    """Return an exception's traceback, even if a method of the exception itself raises."""
    try:
        lines = [*_from_users_frame(error).format()]
    except Exception:  # from a property of the exception, for example
        lines = [*traceback.format_tb(error.__traceback__), described(error), "\n"]
    return "".join(lines)


def _from_users_frame(error: BaseException) -> traceback.TracebackException:
    """Return an exception's traceback without our own frames, which come before the user's code."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting: list[traceback.TracebackException | None] = [whole]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        users = next(
            (at for at, frame in enumerate(one.stack) if not _is_machinery(frame.filename)), 0
        )
        del one.stack[:users]
        waiting += [one.__cause__, one.__context__]
    return whole


def _is_machinery(file: str) -> bool:
    return file.startswith(_MACHINERY) or file.endswith(_DECORATORS)


def _print(text: str) -> None:
    """Print to the log. Split lines that the log would truncate."""
    for line in text.splitlines():
        for start in range(0, max(1, len(line)), _MAX_LINE):
            _write(line[start : start + _MAX_LINE], sys.__stderr__ or sys.stderr)


def report_threads() -> None:
    """Report exceptions that terminate threads of this process, instead of only printing them."""

    def hook(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
            name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
            report_error(ended.exc_value, f"{name} of the callable failed")

    threading.excepthook = hook


def note(text: str) -> None:
    """Report normal progress."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        _write(text, sys.__stdout__ or sys.stdout)
        return
    logger.info("model %s: %s", _here.model, text)


def report(text: str) -> None:
    """Report a problem that needs attention."""
    logger: logging.Logger | None = getattr(_here, "logger", None)
    if logger is None:
        _print(text)
        return
    logger.warning("model %s: %s", _here.model, text)


def _write(text: str, stream: TextIO | None) -> None:
    """Write a line to the process's original output, even if the callable has replaced `sys.stdout` or `sys.stderr`.

    If the callable has closed the stream, drop the line instead of ending the worker.
    """
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(f"{text}\n")
            stream.flush()


def _trace_ids(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield the trace id of each traced request, without duplicates."""
    contexts: list[str | None] = []
    for batch in batches:
        contexts += batch.trace.contexts if batch.trace is not None else []
        contexts += [request.details.trace for request in batch.requests if request.details]
    for context in dict.fromkeys(contexts):
        found = trace_id(context)
        if found:
            yield found
