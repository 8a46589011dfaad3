"""Fixtures of the worker's tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pytriton.ipc.lane import Lane


@pytest.fixture
def lanes() -> Iterator[tuple[Lane, Lane]]:
    """Both ends of a lane, the proxy's and the worker's."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proxy, worker = Lane(ends[0], peer_trusted=False), Lane(ends[1], peer_trusted=True)
    yield proxy, worker
    proxy.close()
    worker.close()
