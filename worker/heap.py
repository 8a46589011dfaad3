"""Makes the C library keep freed memory long enough for the next batch.

glibc returns the free end of its heap to the kernel when that exceeds twice the largest array seen
so far. A callable with a few temporaries exceeds that in every batch, and then pays a page fault for
each 4 KiB of the next: measured for 602 KB in and three temporaries, 1.6 ms instead of 0.3 ms a batch;
for 6 MB, 15 ms instead of 7.5 ms. So the thresholds are set to the maximum that glibc would raise them to by
itself (mallopt(3)). The cost is up to 64 MiB of memory held while idle, in workers whose batches
need that much.
"""

from __future__ import annotations

import ctypes
import os

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems; larger arrays are mapped separately and released at once.
_MMAP_BYTES = 32 << 20
_TRIM_BYTES = 2 * _MMAP_BYTES
#: If one of these is set, the user has made another choice.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Make this process keep up to 64 MiB of freed memory; return whether its C library does.

    Call it after everything is loaded, so that memory freed during loading is still returned. Does
    nothing without glibc, or if the environment (including GLIBC_TUNABLES) configures malloc.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
