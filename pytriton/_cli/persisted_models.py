"""Reports how a daemon restores its persisted models after a start, and waits until all are restored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pytriton._cli.errors import CliError
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.rates import duration

#: Interval between status requests: the daemon does not send it unprompted.
_POLL_INTERVAL_S = 0.2
#: States of a model that is being loaded after a start, or waits for its turn.
_COMING = ("restoring", "loading")
#: Maximum time between two lines of --wait-models while nothing changes.
_REPORT_INTERVAL_S = 10.0
#: Maximum number of loading models that are named.
_MAX_NAMED = 3


def remarks(status: messages.Status) -> Iterator[str]:
    """Yield sentences about models that are being loaded, models that failed, and models that will load on their
    first request.
    """
    states = Counter(model.state for model in status.models)
    coming = sum(states[state] for state in _COMING)
    if coming:
        waits = "; --wait-models waits for the persisted ones" if states["restoring"] else ""
        yield f"{_models(coming)} being loaded: `pytriton-daemon status` shows them{waits}"
    if states["suspended"]:
        yield f"{_models(states['suspended'])} suspended: the first request loads each of them"
    if states["failed"]:
        yield f"{_models(states['failed'])} not served: see `pytriton-daemon status`"


def progress(models: Sequence[messages.ModelInfo], now: float) -> str:
    """Describe the progress of loading, including the models that take longest; "" if no model is being loaded.

    Args:
        models: the models in the daemon's status
        now: seconds since the epoch
    """
    left = [model for model in models if model.state in _COMING]
    failed = sum(model.state == "failed" for model in models)
    if not left:
        return ""
    loading = sorted(
        (model for model in left if model.loading_since), key=lambda model: model.loading_since
    )
    parts = [f"{len(models) - len(left) - failed:,} of {len(models):,} models are available"]
    if failed:
        parts.append(f"{failed:,} failed")
    if loading:
        named = ", ".join(
            f"{model.name} for {duration(now - model.loading_since)}"
            for model in loading[:_MAX_NAMED]
        )
        more = f" and {len(loading) - _MAX_NAMED} more" if len(loading) > _MAX_NAMED else ""
        parts.append(f"loading {named}{more}")
    if len(left) > len(loading):
        parts.append(f"{len(left) - len(loading):,} more to load")
    return "; ".join(parts)


def wait_until_restored(
    status: messages.Status,
    ask: Callable[[], messages.Status],
    pause: Callable[[float], None] = time.sleep,
    report: Callable[[str], None] = lambda text: None,
) -> messages.Status:
    """Wait until no model is being restored, and return the daemon's status at that time.

    Args:
        status: the daemon's current status
        ask: returns a new status; raises CliError if the daemon is no longer running
        pause: waits for a number of seconds
        report: gets a line about the progress whenever it has changed, and every few seconds

    Raises:
        CliError: models could not be restored; the text names them.
    """
    waited_s, reported_s, left = 0.0, -_REPORT_INTERVAL_S, -1
    while any(model.state == "restoring" for model in status.models):
        now_left = sum(model.state == "restoring" for model in status.models)
        if now_left != left or waited_s - reported_s >= _REPORT_INTERVAL_S:
            left, reported_s = now_left, waited_s
            report(progress(status.models, time.time()))
        pause(_POLL_INTERVAL_S)
        waited_s += _POLL_INTERVAL_S
        status = ask()
    failed = [model for model in status.models if model.state == "failed"]
    if failed:
        reasons = "\n".join(f"  {model.name}: {model.error}" for model in failed)
        raise CliError(
            ExitCode.REGISTRATION_FAILED,
            f"the daemon is ready, but these models are not:\n{reasons}",
        )
    return status


def _models(count: int) -> str:
    return f"{count:,} model is" if count == 1 else f"{count:,} models are"
