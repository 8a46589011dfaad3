"""The main module of a process that multiprocessing starts fresh in a worker: `__mp_main__` (memory_modules.py)."""

from __future__ import annotations

if __name__ == "__mp_main__":
    from pytriton.worker.memory_modules import restore

    __getattr__ = restore()
