"""Advice on a failure, by the words of its reason: a small table."""

from __future__ import annotations

import re

#: (what the reason says, what to do); the first that fits counts.
_HINTS = (
    (
        r"No space left on device|Disk quota exceeded|Read-only file system|File too large",
        "Make room on the disk that the message names.",
    ),
    (
        r"memory_budget",
        "`pytriton-daemon status` shows the budget. More of it would help, or models that may sleep while they are "
        "idle: any_may_sleep = true, or instances=(0, 1) or lazy=True of those that hold it.",
    ),
    (
        r"CUDA|cuda|NCCL|hipError",
        "Look which devices the model was registered with (devices=) and which there are (nvidia-smi): "
        "CUDA_VISIBLE_DEVICES of an instance is its device alone.",
    ),
    (
        r"load_timeout_s",
        "Loading takes longer than load_timeout_s: register with a higher one, or load less.",
    ),
    (
        r"worker_start_timeout_s",
        "The worker did not even begin: look at the interpreter (python=) and at the load of the machine.",
    ),
    (
        r"memory_hard|bytes of memory|lack of memory|MemoryError|OutOfMemory",
        "It needs more memory than it may have: raise the limit, or use smaller batches or fewer instances.",
    ),
    (
        r"No module named|ModuleNotFoundError|cannot import name|ImportError",
        "A package is missing in the workers' environment: install it there, or give another with python=.",
    ),
    (
        r"is registered already",
        "Say replace=True (--replace) to put the new one in its place, or choose another name.",
    ),
    (
        r"No such file or directory|FileNotFoundError",
        "A file is not where the callable looks for it: workers look on the daemon's machine, and for relative paths "
        "in the folder that it was registered from (cwd=).",
    ),
    (
        r"Permission denied",
        "The daemon's user may not read or run what the message names.",
    ),
    (
        r"signal 11|SIGSEGV|signal 6|SIGABRT|signal 7|SIGBUS",
        "Native code of the callable crashed: the traces of all threads are in the log.",
    ),
)


def hint(reason: str) -> str:
    """Return what to do about a failure; "" where its words say nothing that is known."""
    return next((advice for words, advice in _HINTS if re.search(words, reason)), "")
