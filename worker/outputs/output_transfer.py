"""The transfer of an output to the proxy: copied into the lane's arena or, a large one, lent.

A proxy that may read this process's memory says so (`Batch.reads`); then a large array's address goes
over the lane::

    arena:  callable ─▶ array ──copy──▶ the lane's arena ──copy──▶ Triton's memory
    lent:   callable ─▶ array ──────── process_vm_readv ─────────▶ Triton's memory

Until the proxy has read it, the loop waits: nothing that the model runs can change the array
meanwhile, and it takes no longer than the copy that it saves.
"""

from __future__ import annotations

import numpy as np

from pytriton._protocol import linux
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import OWN, TensorRef
from pytriton._protocol.lanes.tensors import Array

#: Below, a copy costs no more than to look up the pages and to wait for the proxy.
_SMALLEST = 1 << 20


def lay_down(
    lane: Lane, name: str, datatype: str, array: Array, dtype: np.dtype[np.generic]
) -> TensorRef:
    """Return where an output lies for the proxy, as `dtype` and C-contiguous.

    `lane.lent` holds what was not copied.

    Raises:
        ArenaError: no memory for a copy.
    """
    if lane.reads and array.nbytes >= _SMALLEST and _can_be_lent(array, dtype):
        lane.lent.append(array)
        start = tensors.address(array)
        return TensorRef(name, datatype, list(array.shape), OWN, start, array.nbytes)
    return tensors.write(lane, name, datatype, array, dtype)


def _can_be_lent(array: Array, dtype: np.dtype[np.generic]) -> bool:
    # Memory that a device's driver has mapped (pinned, say) may not be readable for others: the kernel tells.
    return (
        array.flags.c_contiguous
        and array.dtype == dtype
        and linux.is_readable(tensors.address(array), array.nbytes)
    )
