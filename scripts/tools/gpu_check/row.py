"""Runs one row in this process, and writes its outcome: `python -m gpu_check.row NAME FILE`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from gpu_check.machine import Machine, RowFailed


def main(name: str, file: Path) -> int:
    """Run a row. An exception is its failure, whatever it is; the log has the traceback."""
    from gpu_check.rows import ROW_FUNCTIONS

    machine = Machine.read(Path(os.environ["GPU_CHECK_FACTS"]), file.parent)
    numbers: dict[str, Any] = {}
    try:
        detail, result = ROW_FUNCTIONS[name](machine, numbers), "passed"
    except RowFailed as error:
        detail, result = str(error), "failed"
    except Exception as error:
        traceback.print_exc()
        detail, result = f"{type(error).__name__}: {error}", "failed"
    file.write_text(
        json.dumps({"result": result, "detail": detail, "numbers": numbers}, default=float)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
