"""`python -m pytriton`: runs the check tool, like the command `pytriton`."""

from __future__ import annotations

from pytriton.check import main

if __name__ == "__main__":
    main()
