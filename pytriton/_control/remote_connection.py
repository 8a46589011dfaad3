"""Requests to a daemon over TCP, on this or another machine: encrypted, with the client's own key."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton._control.connection import ControlRequest, LivenessCheck, ask
from pytriton._protocol import messages
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError

if TYPE_CHECKING:
    from pytriton._protocol import control

#: Interval between checks of the connection while waiting for an answer.
_POLL_INTERVAL_S = 0.1


class RemoteConnection:
    """A client's connection to a daemon over TCP (CurveZMQ); it holds no resources but the keys.

    There is no lock file that shows whether the daemon lives. ZeroMQ's heartbeats detect a broken connection, and the
    request on it has failed then.

    Args:
        endpoint: tcp://HOST:PORT
        key_file: the file written by `pytriton-daemon keys add`
        timeout_s: seconds that the handshake may take

    Raises:
        PyTritonDaemonError: the key file is missing or invalid.
    """

    def __init__(self, endpoint: str, key_file: str | Path | None, timeout_s: float) -> None:
        self.name = endpoint
        self._timeout_s = timeout_s
        self._keys = _read_keys(endpoint, key_file)

    def access_token(self) -> str | None:
        """Raise: the access token never leaves the daemon's machine.

        Raises:
            PyTritonDaemonError: always.
        """
        raise PyTritonDaemonError(
            f"The access token of the daemon at {self.name} is in its runtime directory, on its own machine: "
            "print it there with `pytriton-daemon access-token`, or have the setting access_token set to a token that "
            "you know."
        )

    def ask(self, question: ControlRequest) -> messages.AnyMessage:
        """Return the answer to a request; raise as `request.ask` does."""
        from pytriton._protocol import control  # the first use of ZeroMQ

        begun = time.monotonic()
        with control.ControlClient(self.name, self._keys) as channel:

            def is_alive() -> bool:
                channel.watch()
                late = not channel.agreed and time.monotonic() - begun > self._timeout_s
                return channel.trouble is None and not late

            watch = LivenessCheck(
                f"The daemon at {self.name}",
                _POLL_INTERVAL_S,
                is_alive,
                lambda silence: self._failed(channel, silence),
            )
            return ask(channel, question, watch)

    def _failed(self, channel: control.ControlClient, silence: Exception) -> PyTritonDaemonError:
        channel.watch()
        if not channel.agreed and channel.trouble is not None:
            return PyTritonDaemonError(
                f"The daemon at {self.name} refuses this client: {channel.trouble}. Ask its administrator for a key "
                "file (`pytriton-daemon keys add NAME`), and pass it with connect(..., key_file=...)."
            )
        if not channel.agreed:
            return DaemonNotRunningError(
                f"No daemon answers at {self.name} within {self._timeout_s:g} s. Check there with `pytriton-daemon "
                "status` where it listens (control_tcp), and whether a firewall is in between."
            )
        return DaemonNotRunningError(
            f"The daemon at {self.name} did not answer: {channel.trouble or silence}. Check there whether it still "
            "runs (`pytriton-daemon status`, `pytriton-daemon logs`)."
        )


def _read_keys(endpoint: str, key_file: str | Path | None) -> control.CurveKeys:
    from pytriton._protocol.control import CurveKeys

    if key_file is None:
        raise PyTritonDaemonError(
            f"{endpoint} accepts only clients with a key: connect({endpoint!r}, key_file=...). The daemon's "
            "administrator creates the file with `pytriton-daemon keys add NAME`."
        )
    path = Path(key_file).expanduser()
    try:
        return CurveKeys.read(str(path))
    except (OSError, ValueError) as error:
        raise PyTritonDaemonError(f"The key file {path} cannot be used: {error}.") from error
