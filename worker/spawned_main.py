"""Main module (`__mp_main__`) of a process that multiprocessing spawns from a worker; see memory_modules.py."""

from __future__ import annotations

if __name__ == "__mp_main__":
    from pytriton.worker.memory_modules import restore

    __getattr__ = restore()
