"""Memory of a large batch is released after a while without use, and allocated again when needed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fakes.triton.fake_tritonserver import echo, run, serve_batches
from support.real_daemon import eventually

from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import Batch, BatchBegun, BatchDone, BatchPart

#: What an arena keeps in the program of these tests.
_KEPT = 1 << 17
#: So many requests need more than that.
_REQUESTS = 1500


def _pages(lane: Lane) -> int:
    """Return the resident bytes of the arena that the proxy writes."""
    sizes = []
    for link in Path(f"/proc/{lane.peer_pid()}/fd").iterdir():
        with suppress(FileNotFoundError):
            flags = int((link.parents[1] / "fdinfo" / link.name).read_text().split()[3], 8)
            if "pytriton-lane" in os.readlink(link) and flags & os.O_ACCMODE == os.O_RDWR:
                sizes.append(link.stat().st_blocks * 512)
    (size,) = sizes
    return size


def test_the_proxys_arena_shrinks_while_it_is_unused(program: Path, tmp_path: Path) -> None:
    """The worker responds slowly; the inputs of the next batch are right again."""
    held: list[int] = []

    def work(lane: Lane) -> None:
        def serve(batch: Batch) -> None:
            held.append(_pages(lane))
            lane.arena.reset()
            answers = echo(lane, batch).responses  # reads all inputs, and checks their shapes
            lane.send(BatchBegun(batch.id))
            eventually(lambda: _pages(lane) == _KEPT, "the proxy gives memory back")
            lane.send(BatchPart(batch.id, [answers[0], *[None] * (len(answers) - 1)]))
            lane.send(BatchDone(batch.id, []))

        serve_batches(lane, serve)

    lines, _ = run(program, tmp_path, [work], batches=3, requests=_REQUESTS, decoupled=True)
    assert len(held) == 3
    assert min(held) > _KEPT
    first, *others = (line for line in lines if line.startswith("response to 0"))
    assert " y 11 [1,4] " in first
    assert others == [first] * 2
