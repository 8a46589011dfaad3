"""The kept models of a daemon that has just been started: how far they are, and waiting for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from pytriton.cli.errors import CliError
from pytriton.ipc import messages
from pytriton.ipc.exit_codes import ExitCode

#: Between two looks: the daemon tells only who asks.
_LOOK_S = 0.2


def remarks(status: messages.Status) -> Iterator[str]:
    """Yield a sentence about those that are being restored, could not be, and are not loaded before a request."""
    states = Counter(model.state for model in status.models)
    if states["restoring"]:
        yield (
            f"{_models(states['restoring'])} being restored, one after the other: `pytriton-daemon status` shows "
            "them, and --wait-models waits for them"
        )
    if states["asleep"]:
        yield f"{_models(states['asleep'])} asleep: the first request has each loaded"
    if states["failed"]:
        yield f"{_models(states['failed'])} not served: `pytriton-daemon status` tells why"


def wait_until_restored(
    status: messages.Status,
    ask: Callable[[], messages.Status],
    pause: Callable[[float], None] = time.sleep,
) -> messages.Status:
    """Return the status in which no model is being restored any more.

    Args:
        status: of the daemon now
        ask: asks for it anew; raises CliError when no daemon runs any more
        pause: waits for so many seconds

    Raises:
        CliError: models could not be restored; names them.
    """
    while any(model.state == "restoring" for model in status.models):
        pause(_LOOK_S)
        status = ask()
    failed = [model for model in status.models if model.state == "failed"]
    if failed:
        reasons = "\n".join(f"  {model.name}: {model.error}" for model in failed)
        raise CliError(
            ExitCode.REGISTRATION, f"the daemon is ready, and these models are not:\n{reasons}"
        )
    return status


def _models(count: int) -> str:
    return f"{count:,} kept model is" if count == 1 else f"{count:,} kept models are"
