"""`pytriton-daemon fleet balance`: runs HAProxy in front of the nodes until a signal stops it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton._cli.errors import say

if TYPE_CHECKING:
    from pytriton.fleet import NodeStatus
    from pytriton.fleet.balancer.configuration import BalancerSettings


def run(
    look: Callable[[], Iterable[NodeStatus]],
    settings: BalancerSettings,
    folder: Path | None,
    interval_s: float,
    applied: Callable[[], None] = lambda: None,
) -> None:
    """Balance until SIGTERM or SIGINT; then HAProxy finishes its requests and exits.

    Raises:
        HAProxyError: HAProxy was not found
        PyTritonBadParameterError: a setting is invalid
    """
    from pytriton.fleet.balancer.haproxy import find_haproxy

    program = find_haproxy()
    if folder is not None:
        _balance(look, settings, program, folder.absolute(), interval_s, applied)
        return
    made = Path(tempfile.mkdtemp(prefix="ptb-"))
    try:
        _balance(look, settings, program, made.absolute(), interval_s, applied)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _balance(
    look: Callable[[], Iterable[NodeStatus]],
    settings: BalancerSettings,
    program: str,
    place: Path,
    interval_s: float,
    applied: Callable[[], None],
) -> None:
    from pytriton.fleet.balancer.balance import Balancer
    from pytriton.fleet.balancer.configuration import render
    from pytriton.fleet.balancer.haproxy import HAProxy

    render([], settings, str(place))  # report invalid settings before anything starts
    haproxy = HAProxy(place, program)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    where = ", ".join(
        f"{name} {address}"
        for name, address in (("HTTP", settings.http), ("gRPC", settings.grpc))
        if address
    )
    say(f"HAProxy {program} in {place}: {where}")
    try:
        Balancer(haproxy, settings, look, applied).run(stop, interval_s, say)
    finally:
        haproxy.stop()
