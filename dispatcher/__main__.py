"""python -m pytriton.dispatcher: run a daemon whose settings are one JSON object on standard input (process.py).

It is the first file that a daemon's interpreter runs, and keeps the time of the imports short.
"""

from __future__ import annotations

import gc
import sys


def _start() -> int:
    gc.disable()  # it would look for rubbish among modules that stay
    # structlog imports rich for tracebacks in colour, which the daemon does not print: a tenth of all imports.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
    from pytriton.dispatcher.process import main

    gc.freeze()
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(_start())
