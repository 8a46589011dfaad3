"""`python -m pytriton`: the check tool, same as `pytriton`."""

from __future__ import annotations

from pytriton.check import main

if __name__ == "__main__":
    main()
