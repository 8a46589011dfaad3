"""The actor that keeps a runtime_env alive on a node. It must not import pytriton, which the environment may lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys


class EnvironmentHolder:
    """Actor in an environment created by Ray. Ray keeps the environment as long as the actor lives."""

    def describe(self) -> tuple[str, list[str], str, dict[str, str]]:
        """Return the `surroundings` of this actor's process."""
        return surroundings()


def surroundings() -> tuple[str, list[str], str, dict[str, str]]:
    """Return this process's interpreter, module search path, working directory and environment variables."""
    # Use a separate process, because Ray adds folders to the module search path of this one.
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path))"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    search = [one for one in json.loads(shown.stdout) if one]
    return sys.executable, search, os.getcwd(), dict(os.environ)
