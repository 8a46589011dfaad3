"""Program that completes a model's configuration from its file. It runs in the workers' environment.

It reads a JSON object with `title`, `loader`, `path` and `config` from standard input. The last line that it writes to
standard output is a JSON object with the completed `config`, or with `error`, a sentence.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from pytriton.formats.complete import complete
from pytriton.formats.loaded import FormatError
from pytriton.formats.model import load_file


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Load the model file that `question` names, and return the JSON object to print."""
    config, path = question["config"], question["path"]
    try:
        loaded = load_file(question["title"], question["loader"], path, config)
        return {"config": complete(config, loaded, path)}
    except FormatError as error:
        traceback.print_exc()
        return {"error": str(error)}


def main() -> int:
    """Read the input, print the answer, and return the exit code."""
    print("\n" + json.dumps(answer(json.load(sys.stdin))), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
