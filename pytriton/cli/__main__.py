"""python -m pytriton.cli: the same as `pytriton-daemon`."""

from __future__ import annotations

from pytriton.cli import main

if __name__ == "__main__":
    main()
