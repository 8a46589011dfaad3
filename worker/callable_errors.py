"""The exceptions that count as a failure of the callable: its clients get them, and the worker continues.

`asyncio.CancelledError` is one of them, although it is not an `Exception`. A callable may raise it without having been
cancelled: by awaiting a cancelled task, a call of a closed grpc.aio channel, or a scope of anyio.
All others that are not an `Exception` (`SystemExit`, for example) end the worker, in any thread or event loop.
"""

from __future__ import annotations

import sys

from pytriton._protocol.errors import members
from pytriton.exceptions import PyTritonUnrecoverableError


def callable_errors() -> tuple[type[BaseException], ...]:
    """Return these exceptions, for an `except`, which evaluates them only when something was raised.

    asyncio takes 30 ms to import. If it has not been imported, its exceptions cannot be raised.
    """
    exceptions = sys.modules.get("asyncio.exceptions")
    return (Exception,) if exceptions is None else (Exception, exceptions.CancelledError)


def is_cancellation(error: BaseException) -> bool:
    """Return True if an exception is asyncio's `CancelledError`."""
    return isinstance(error, callable_errors()) and not isinstance(error, Exception)


def reason(error: BaseException) -> BaseException:
    """Return the cause of a callable's failure: of a group, its only member, or the unrecoverable one."""
    found = members(error)
    for one in found:
        if isinstance(one, PyTritonUnrecoverableError):
            return one
    return found[0] if len(found) == 1 else error
