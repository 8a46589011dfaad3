"""The exceptions with which a callable fails: its clients get them, and the worker goes on.

`asyncio.CancelledError` is one of them, though it is no `Exception`. A callable raises it without that anybody has
cancelled it: where it awaits a task that was cancelled, a call of a closed grpc.aio channel, or a scope of anyio's.
All others that are no `Exception` (`SystemExit`, say) end the worker, in whichever thread or event loop they come up.
"""

from __future__ import annotations

import sys

from pytriton._protocol.errors import members
from pytriton.exceptions import PyTritonUnrecoverableError


def callable_errors() -> tuple[type[BaseException], ...]:
    """Return them, for an `except`, which asks for them only when something was raised.

    asyncio takes 30 ms to import. Where nobody has, nobody can raise its exceptions.
    """
    exceptions = sys.modules.get("asyncio.exceptions")
    return (Exception,) if exceptions is None else (Exception, exceptions.CancelledError)


def is_cancellation(error: BaseException) -> bool:
    """Return whether an exception is asyncio's `CancelledError`."""
    return isinstance(error, callable_errors()) and not isinstance(error, Exception)


def reason(error: BaseException) -> BaseException:
    """Return what a callable failed by: of a group, its only member, or the one that is unrecoverable."""
    found = members(error)
    for one in found:
        if isinstance(one, PyTritonUnrecoverableError):
            return one
    return found[0] if len(found) == 1 else error
