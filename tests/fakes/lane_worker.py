"""A worker of a proxy's as the test plays it: it listens for lanes, and answers batches as it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import Batch, FromProxy

#: Says what is done about a message of a proxy; raising `Hangup` ends the lane.
Behaviour = Callable[[Lane, FromProxy], None]


class Hangup(Exception):
    """The worker ends, as far as this proxy can see."""


class LaneWorker:
    """Listens at `path`; each lane is served in a thread of its own. Faults of the test come up in `close`."""

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
        """The batches that came, over whatever lane."""
        return [one for one in self.heard if isinstance(one, Batch)]

    def close(self) -> None:
        """Listen no more; the lanes have to have been ended by the proxies."""
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
