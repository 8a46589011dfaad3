"""Both ends of a lane in one process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pytriton._protocol.lanes.lane import Lane

#: The proxy's end and the worker's.
Lanes = tuple[Lane, Lane]


@contextmanager
def lane_pair() -> Iterator[Lanes]:
    """Open a lane, and close both ends."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proxy, worker = Lane(ends[0], peer_trusted=False), Lane(ends[1], peer_trusted=True)
    with closing(proxy), closing(worker):
        yield proxy, worker
