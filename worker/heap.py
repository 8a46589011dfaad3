"""How long the C library keeps memory that was freed: long enough for the next batch.

glibc gives the free end of its heap back to the kernel when that exceeds twice the largest array seen
so far. A callable with a few temporaries passes that in every batch, and then pays a page fault for
each 4 KiB of the next: measured for 602 KB in and three temporaries, 1.6 ms instead of 0.3 ms a batch;
for 6 MB, 15 ms instead of 7.5 ms. So the thresholds are set to the most that glibc would raise them to by
itself (mallopt(3)). It costs up to 64 MiB of memory that is held while idle, in workers whose batches
need as much.
"""

from __future__ import annotations

import ctypes
import os

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: DEFAULT_MMAP_THRESHOLD_MAX of 64 bits; larger arrays are mapped by themselves, and given back at once.
_MMAP_BYTES = 32 << 20
_TRIM_BYTES = 2 * _MMAP_BYTES
#: With these, somebody has decided otherwise.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Have this process keep up to 64 MiB of freed memory; return whether its C library does.

    Call it when everything is loaded: what loading has freed by then is better given back. Does
    nothing without glibc, or where the environment (also GLIBC_TUNABLES) says how malloc shall behave.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
