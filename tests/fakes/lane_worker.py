"""A proxy's worker, played by the test: it accepts lanes and answers batches as scripted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, FromProxy

#: Handles a message of a proxy; raising `Hangup` ends the lane.
Behaviour = Callable[[Lane, FromProxy], None]


class Hangup(Exception):
    """Raised by a script to make the worker look dead to this proxy."""


class LaneWorker:
    """Listens at `path` and serves each lane in a thread. `close` raises errors of the script."""

    def __init__(
        self, path: Path, behave: Behaviour, greet: Callable[[Lane], None] = lambda lane: None
    ) -> None:
        self.path = str(path)
        self.heard: list[FromProxy] = []
        self._behave, self._greet = behave, greet
        self._faults: list[Exception] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def batches(self) -> list[Batch]:
        """The batches received over any lane."""
        return [one for one in self.heard if isinstance(one, Batch)]

    def close(self) -> None:
        """Stop listening; the proxies must have closed their lanes."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        Path(self.path).unlink()
        assert self._faults == []

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        lane = Lane(connection, peer_trusted=True)
        try:
            self._greet(lane)
            while True:
                message = lane.receive()
                self.heard.append(message)  # type: ignore[arg-type]
                self._behave(lane, message)  # type: ignore[arg-type]
        except (LaneClosed, Hangup):
            pass
        except Exception as error:
            self._faults.append(error)
        finally:
            lane.close()
