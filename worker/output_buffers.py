"""Buffers for `empty_output`: a callable computes its outputs in memory that the proxy can read, so nothing is copied.

Each lane that uses buffers has an arena for them, separate from the arena for copied results. A buffer is reused when
nothing refers to its array any more *and* the proxy has read it::

    begin ───────▶ callable ──────────▶ results written ────▶ finalize ─────▶ next batch: begin
    free unused    allocate, compute    refer to buffers      array in use?   (the proxy has read
    buffers                             in place              copy instead    the buffers in place)

So arrays of two calls never share memory, however long the callable keeps them. And nothing in this process can write
to memory while the proxy reads it: if the callable still holds an array when its batch is answered, the output is
copied like any other. A weak reference to the array detects that, since all views, memoryviews and tensors of the
array refer to it.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pytriton._protocol.errors import described
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.arena import Arena, ArenaError
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import BatchDone, BatchFailed, TensorRef
from pytriton._protocol.lanes.tensors import Array
from pytriton.worker.request_log import Part, serving

#: The number under which the proxy knows a lane's buffer arena.
_BUFFERS = 1
#: Below this size, copying costs less than checking whether a copy is needed (measured: equal at 256 KiB).
_SMALLEST = 1 << 18
#: A callable that keeps more than this gets ordinary memory instead, to which memory limits apply. A buffer counts as at
#: least 1 MiB.
_MAX_KEPT = 256 << 20


class _Block(NamedTuple):
    """A buffer: a weak reference to the array that was handed out, and its position in the arena."""

    array: weakref.ref[Array]
    start: int
    end: int


class _LaneBuffers:
    """The buffers of one lane, and their arena."""

    def __init__(self) -> None:
        self.arena = Arena("pytriton-outputs")
        self.announced = False
        self.placed: list[_Block] = []  #: the buffers that the current answer refers to
        #: Whether several calls contribute to the current answer, so that a later one may write to a buffer again.
        self.shared = False
        self._blocks: list[_Block] = []
        self._full = False

    def recycle(self) -> None:
        """Free the buffers whose arrays no longer exist. The proxy must have read these buffers."""
        self.placed = []
        self.shared = False
        self._blocks = [block for block in self._blocks if block.array() is not None]
        self._blocks.sort(key=_start)
        kept = [(block.start, block.end) for block in self._blocks]
        self._full = sum([max(end - start, 1 << 20) for start, end in kept]) > _MAX_KEPT
        self.arena.reset(kept)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array | None:
        """Return a new array in the arena; None if the callable keeps too many arrays.

        Raises:
            ArenaError: not enough memory.
        """
        if not self.arena.fits(nbytes) and not self.placed:
            self.recycle()  # rather than grow
        if self._full:
            return None
        start = self.arena.allocate(nbytes)
        array: Array = np.ndarray(shape, dtype, self.arena.writable(), start)
        self._blocks.append(_Block(weakref.ref(array), start, start + nbytes))
        return array

    def find(self, array: Array) -> tuple[_Block, int] | None:
        """Return the buffer that contains a contiguous array, and the array's offset in the arena; None if none does.

        numpy makes the first array the base of every view, so a buffer contains an array if it is the array's base.
        """
        for block in self._blocks:
            given = block.array()
            if given is array:
                return block, block.start
            if given is not None and given is array.base:
                start = block.start + tensors.address(array) - tensors.address(given)
                return (block, start) if _inside(block, start, array.nbytes) else None
        return None


class OutputBuffers:
    """The output buffers of one worker: hands out arrays while a callable runs, and recognizes them in its results.

    In a call for several lanes, buffers are in the first lane's memory, and outputs for the other lanes are copied.

    Attributes:
        used: whether a buffer was ever requested
    """

    def __init__(self) -> None:
        self.used = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # a callable may have threads
        self._lane: Lane | None = None  #: the first lane of the running call
        self._lanes: dict[int, _LaneBuffers] = {}  #: by id(lane); removed with the lane

    def begin(self, parts: Sequence[Part]) -> None:
        """Prepare for a call. By sending the call's batches, the proxies have shown that they have read their
        previous answers.
        """
        self._lane = parts[0].lane
        if self.used:
            for part in parts:
                self.on_answer_read(part.lane)

    def share(self, lane: Lane) -> None:
        """Prepare for several calls for the current batch: each call's outputs are copied before the next call."""
        buffers = self._lanes.get(id(lane))
        if buffers is not None:
            buffers.shared = True

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Return a new array for an output; None if the caller should use ordinary memory.

        Raises:
            MemoryError: not enough memory.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _SMALLEST or dtype.hasobject:
            return None
        if os.getpid() != self._pid:  # in a fork of the worker
            return None
        with self._lock:
            parts = serving.get()
            lane = self._lane if parts is None else parts[0].lane
            if lane is None:  # no call is running
                return None
            buffers = self._lanes.get(id(lane)) or self._add(lane)
            try:
                return buffers.allocate(shape, dtype, nbytes)
            except ArenaError as error:
                raise MemoryError(f"empty_output: {error}") from error

    def place(self, lane: Lane, name: str, datatype: str, array: Array) -> TensorRef | None:
        """Return a reference to an output that is already in a buffer; None if it must be copied.

        Raises:
            LaneClosed, LaneError: the memory cannot be announced to the proxy.
        """
        buffers = self._lanes.get(id(lane))
        if buffers is None or array.nbytes == 0 or not array.flags.c_contiguous:
            return None
        if buffers.shared:
            return None
        found = buffers.find(array)
        if found is None:
            return None
        block, offset = found
        if not buffers.announced:
            lane.announce(_BUFFERS, buffers.arena.open_readonly())
            buffers.announced = True
        buffers.placed.append(block)
        return TensorRef(name, datatype, list(array.shape), _BUFFERS, offset, array.nbytes)

    def large(self, lane: Lane) -> bool:
        """Return True if a lane's buffers have more memory than a lane keeps while it is idle."""
        buffers = self._lanes.get(id(lane)) if self.used else None
        return buffers is not None and buffers.arena.large

    def on_answer_read(self, lane: Lane) -> None:
        """Free the unused buffers of a lane, because the proxy has read the last answer."""
        buffers = self._lanes.get(id(lane)) if self.used else None
        if buffers is not None:
            with self._lock:
                buffers.recycle()

    def release_unused(self, lane: Lane) -> None:
        """Free the unused buffers of a lane, unless its proxy may still read them."""
        buffers = self._lanes.get(id(lane)) if self.used else None
        if buffers is not None and not buffers.placed:
            self.on_answer_read(lane)

    def end(self) -> None:
        """Record that the call has ended. Until the next one, `allocate` returns None."""
        self._lane = None

    def finalize(
        self, parts: Sequence[Part], answers: list[BatchDone | BatchFailed]
    ) -> list[BatchDone | BatchFailed]:
        """Copy the outputs whose arrays the callable still holds. Return the call's answers, with references to the
        copies.

        The worker itself must no longer refer to the results.
        """
        if not self.used:
            return answers
        return [self._finalize(part, answer) for part, answer in zip(parts, answers)]

    def _add(self, lane: Lane) -> _LaneBuffers:
        self.used = True
        buffers = self._lanes[id(lane)] = _LaneBuffers()
        weakref.finalize(lane, self._remove, id(lane))
        return buffers

    def _remove(self, lane_id: int) -> None:
        self._lanes.pop(lane_id).arena.close()

    def _finalize(self, part: Part, answer: BatchDone | BatchFailed) -> BatchDone | BatchFailed:
        buffers = self._lanes.get(id(part.lane))
        if buffers is None or isinstance(answer, BatchFailed):
            return answer
        held = [block for block in buffers.placed if block.array() is not None]
        try:
            for outputs in [response.outputs for response in answer.responses] if held else ():
                for index, ref in enumerate(outputs):
                    if ref.memory == _BUFFERS and any(
                        _inside(block, ref.offset, ref.nbytes) for block in held
                    ):
                        outputs[index] = _copied(ref, part.lane, buffers.arena)
        except ArenaError as error:
            return BatchFailed(answer.id, described(error))
        return answer


def _start(block: _Block) -> int:
    return block.start


def _inside(block: _Block, start: int, nbytes: int) -> bool:
    return block.start <= start and start + nbytes <= block.end


def _copied(ref: TensorRef, lane: Lane, arena: Arena) -> TensorRef:
    data = memoryview(arena.writable())[ref.offset : ref.offset + ref.nbytes]
    return tensors.write_raw(lane, ref.name, ref.datatype, ref.shape, data)
