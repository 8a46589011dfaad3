"""The actor in which Ray keeps a runtime_env on a node. It imports nothing of pytriton: an environment may lack it."""

from __future__ import annotations

import json
import os
import subprocess
import sys


class EnvironmentHolder:
    """Lives in an environment that Ray has made, which Ray keeps for as long."""

    def tell(self) -> tuple[str, list[str], str, dict[str, str]]:
        """Return `surroundings` of this process."""
        return surroundings()


def surroundings() -> tuple[str, list[str], str, dict[str, str]]:
    """Return this process's interpreter, where that one looks for modules, the working directory and the variables."""
    # Another process of it: Ray has folders of its own in the path of this one.
    asked = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    shown = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    search = [one for one in json.loads(shown.stdout) if one]
    return sys.executable, search, os.getcwd(), dict(os.environ)
