"""The transfer of an output to the proxy: copied into the lane's arena or, if large, lent.

A proxy that may read this process's memory sets `Batch.reads`; a large array's address is then
sent over the lane::

    arena:  callable ─▶ array ──copy──▶ the lane's arena ──copy──▶ Triton's memory
    lent:   callable ─▶ array ──────── process_vm_readv ─────────▶ Triton's memory

The loop waits until the proxy has read it: the model cannot change the array
in the meantime, and the wait takes no longer than the copy that it saves.
"""

from __future__ import annotations

import numpy as np

from pytriton._protocol import linux
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import OWN, TensorRef
from pytriton._protocol.lanes.tensors import Array

#: Below this size, a copy costs no more than looking up the pages and waiting for the proxy.
_SMALLEST = 1 << 20


def lay_down(
    lane: Lane, name: str, datatype: str, array: Array, dtype: np.dtype[np.generic]
) -> TensorRef:
    """Write or lend an output as `dtype` and C-contiguous; return a reference to it.

    `lane.lent` holds arrays that were not copied.

    Raises:
        ArenaError: not enough memory for a copy.
    """
    if lane.reads and array.nbytes >= _SMALLEST and _can_be_lent(array, dtype):
        lane.lent.append(array)
        start = tensors.address(array)
        return TensorRef(name, datatype, list(array.shape), OWN, start, array.nbytes)
    return tensors.write(lane, name, datatype, array, dtype)


def _can_be_lent(array: Array, dtype: np.dtype[np.generic]) -> bool:
    # Memory mapped by a device driver (pinned, for example) may not be readable for other processes: ask the kernel.
    return (
        array.flags.c_contiguous
        and array.dtype == dtype
        and linux.is_readable(tensors.address(array), array.nbytes)
    )
