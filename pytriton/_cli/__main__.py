"""Entry point of `python -m pytriton._cli`, which is the same as `pytriton-daemon`."""

from __future__ import annotations

from pytriton._cli import main

if __name__ == "__main__":
    main()
