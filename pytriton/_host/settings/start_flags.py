"""The flags of a runtime directory's last `pytriton-daemon start`: for `restart` and reload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton._host.settings.declarations import ConfigError, options, present_name
from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.files.rundir import RuntimeDir

_FILE = "start.json"


@dataclass(frozen=True)
class StartFlags:
    """The flags from the command line only; settings file and environment are read anew."""

    flags: Mapping[str, Any]
    config: str | None  #: the file named by --config
    cwd: str  #: where relative paths start

    def write(self, rundir: RuntimeDir) -> None:
        """Keep them.

        Raises:
            OSError: the file cannot be written.
        """
        content = {"flags": dict(self.flags), "config": self.config, "cwd": self.cwd}
        # The access token may be among the flags.
        with open(path(rundir), "w", opener=open_private) as file:
            json.dump(content, file)


def read(rundir: RuntimeDir) -> StartFlags | None:
    """Return what was kept, None if nothing was.

    Raises:
        ConfigError: the file cannot be read or holds something else.
    """
    try:
        content = json.loads(path(rundir).read_text())
        kept = {present_name(name): value for name, value in content["flags"].items()}
        flags = {name: value for name, value in kept.items() if name in options()}
        return StartFlags(flags, content["config"], content["cwd"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot read {path(rundir)}, where the flags of the last start are kept ({error!r}). "
            "Delete it, then use `pytriton-daemon stop` and `start` with all flags."
        ) from None


def path(rundir: RuntimeDir) -> Path:
    """Return the path of the file with the flags."""
    return rundir.path / _FILE
