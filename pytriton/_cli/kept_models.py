"""The kept models of a daemon that has just been started: how far they are, and waiting for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pytriton._cli.errors import CliError
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.rates import duration

#: Between two looks: the daemon tells only who asks.
_LOOK_S = 0.2
#: The states of a model that is being loaded after a start, kept or of a repository, or waits for its turn.
_COMING = ("restoring", "loading")
#: While nothing changes, --wait-models says so often what it waits for.
_REPORT_INTERVAL_S = 10.0
#: So many models that are being loaded are named.
_MAX_NAMED = 3


def remarks(status: messages.Status) -> Iterator[str]:
    """Yield a sentence about those that are being restored, could not be, and are not loaded before a request."""
    states = Counter(model.state for model in status.models)
    coming = sum(states[state] for state in _COMING)
    if coming:
        waits = "; --wait-models waits for those that are kept" if states["restoring"] else ""
        yield f"{_models(coming)} being loaded: `pytriton-daemon status` shows them{waits}"
    if states["asleep"]:
        yield f"{_models(states['asleep'])} asleep: the first request has each loaded"
    if states["failed"]:
        yield f"{_models(states['failed'])} not served: `pytriton-daemon status` tells why"


def progress(models: Sequence[messages.ModelInfo], now: float) -> str:
    """Return how far the restores are, with the loads that take longest; "" when none is under way.

    Args:
        models: of a status
        now: seconds since the epoch
    """
    left = [model for model in models if model.state in _COMING]
    failed = sum(model.state == "failed" for model in models)
    if not left:
        return ""
    loading = sorted(
        (model for model in left if model.loading_since), key=lambda model: model.loading_since
    )
    parts = [f"{len(models) - len(left) - failed:,} of {len(models):,} models are there"]
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
    """Return the status in which no model is being restored any more.

    Args:
        status: of the daemon now
        ask: asks for it anew; raises CliError when no daemon runs any more
        pause: waits for so many seconds
        report: gets a line about how far it is, whenever that has changed and every few seconds

    Raises:
        CliError: models could not be restored; names them.
    """
    waited_s, reported_s, left = 0.0, -_REPORT_INTERVAL_S, -1
    while any(model.state == "restoring" for model in status.models):
        now_left = sum(model.state == "restoring" for model in status.models)
        if now_left != left or waited_s - reported_s >= _REPORT_INTERVAL_S:
            left, reported_s = now_left, waited_s
            report(progress(status.models, time.time()))
        pause(_LOOK_S)
        waited_s += _LOOK_S
        status = ask()
    failed = [model for model in status.models if model.state == "failed"]
    if failed:
        reasons = "\n".join(f"  {model.name}: {model.error}" for model in failed)
        raise CliError(
            ExitCode.REGISTRATION, f"the daemon is ready, and these models are not:\n{reasons}"
        )
    return status


def _models(count: int) -> str:
    return f"{count:,} model is" if count == 1 else f"{count:,} models are"
