"""python -m pytriton.dispatcher: run a daemon, with its settings as one JSON object on standard input (process.py).

This is the first file that a daemon's interpreter runs. It makes later imports fast.
"""

from __future__ import annotations

import gc
import sys


def _start() -> int:
    gc.disable()  # collecting would only traverse modules that are never freed
    # structlog imports rich for colored tracebacks, which the daemon does not print: a tenth of all import time.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
    from pytriton.dispatcher.process import main

    gc.freeze()
    gc.enable()
    return main()


if __name__ == "__main__":
    sys.exit(_start())
