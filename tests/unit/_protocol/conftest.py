"""Fixtures of the protocol's tests: a lane's end and its bare peer, and a folder for sockets."""

from __future__ import annotations

import gc
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.raw_lanes import RawLane

from pytriton._protocol.lanes.lane import Lane


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder for sockets: `tmp_path` may exceed the 107 bytes of a unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable garbage collection, so that earlier tests' descriptors are not closed while this test counts."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def end_and_socket() -> Iterator[RawLane]:
    """One end of a lane that does not trust its peer, and the peer's bare socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane = Lane(ends[0], peer_trusted=False)
    yield lane, ends[1]
    lane.close()
    ends[1].close()
