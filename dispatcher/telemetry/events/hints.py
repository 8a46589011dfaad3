"""Advice on failures, by patterns in their reasons."""

from __future__ import annotations

import re

#: (pattern of the reason, advice); the first match wins.
_HINTS = (
    (
        r"No space left on device|Disk quota exceeded|Read-only file system|File too large",
        "Free space on the disk that the message names, and check that it is writable.",
    ),
    (
        r"memory_budget",
        "`pytriton-daemon status` shows the budget. Increase it, or allow models to be suspended while they are "
        "idle: suspend_any_idle_model = true, or instances=(0, 1) or lazy=True for those that hold memory.",
    ),
    (
        r"CUDA|cuda|NCCL|hipError",
        "Compare the devices that the model was registered with (devices=) with the available ones (nvidia-smi): "
        "an instance's CUDA_VISIBLE_DEVICES contains only its own device.",
    ),
    (
        r"load_timeout_s",
        "Loading takes longer than load_timeout_s: register with a higher value, or load less.",
    ),
    (
        r"did not start within",
        "The worker process did not start: check the interpreter (python=) and the load of the machine.",
    ),
    (
        r"memory_limit|bytes of memory|lack of memory|MemoryError|OutOfMemory",
        "It needs more memory than its limit: raise the limit, or use smaller batches or fewer instances.",
    ),
    (
        r"No module named|ModuleNotFoundError|cannot import name|ImportError",
        "A package is missing in the workers' environment: install it there, or select another one with python=.",
    ),
    (
        r"is registered already",
        "Use replace=True (--replace) to replace it, or choose another name.",
    ),
    (
        r"No such file or directory|FileNotFoundError",
        "A file is missing where the callable expects it: workers run on the daemon's machine and resolve relative paths "
        "against the directory that it was registered from (cwd=).",
    ),
    (
        r"Permission denied",
        "The daemon's user lacks permission to read or execute the file that the message names.",
    ),
    (
        r"signal 11|SIGSEGV|signal 6|SIGABRT|signal 7|SIGBUS",
        "Native code of the callable crashed: the stack traces of all threads are in the log.",
    ),
)


def hint(reason: str) -> str:
    """Return the advice for a failure; "" if no pattern matches."""
    return next((advice for words, advice in _HINTS if re.search(words, reason)), "")
