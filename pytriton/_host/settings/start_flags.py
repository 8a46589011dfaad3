"""The flags of `pytriton-daemon start`, saved in the runtime directory for `restart` and reload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton._host.settings.declarations import ConfigError, options
from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.files.rundir import RuntimeDir

_FILE = "start.json"


@dataclass(frozen=True)
class StartFlags:
    """The flags given to `start`. The settings file and the environment are not saved; they are read again."""

    flags: Mapping[str, Any]
    config: str | None = None  #: the file named by --config
    cwd: str = "."  #: the directory that relative paths start from

    def absolute(self) -> StartFlags:
        """Return these flags with absolute paths."""
        base = Path.cwd() / self.cwd
        flags = {
            name: kind.resolve_paths(kind.read(value), base) if kind.is_path else value
            for name, value in self.flags.items()
            for kind in (options()[name].kind,)
        }
        config = None if self.config is None else str(base / Path(self.config).expanduser())
        return StartFlags(flags, config, self.cwd)

    def merged_over(self, earlier: StartFlags) -> StartFlags:
        """Return these flags merged over those of an earlier start, with absolute paths."""
        mine, theirs = self.absolute(), earlier.absolute()
        return StartFlags({**theirs.flags, **mine.flags}, mine.config or theirs.config, mine.cwd)

    def write(self, rundir: RuntimeDir) -> None:
        """Write the flags to the runtime directory.

        Raises:
            OSError: the file cannot be written.
        """
        content = {"flags": dict(self.flags), "config": self.config, "cwd": self.cwd}
        # The access token may be among the flags.
        with open(path(rundir), "w", opener=open_private) as file:
            json.dump(content, file)


def read(rundir: RuntimeDir) -> StartFlags | None:
    """Return the saved flags, or None if there are none.

    Raises:
        ConfigError: the file cannot be read, or its content is invalid.
    """
    try:
        content = json.loads(path(rundir).read_text())
        flags = {name: value for name, value in content["flags"].items() if name in options()}
        return StartFlags(flags, content["config"], content["cwd"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot read {path(rundir)}, which contains the flags of the last start ({error!r}). "
            "Delete it, then run `pytriton-daemon stop` and `start` with all flags."
        ) from None


def path(rundir: RuntimeDir) -> Path:
    """Return the path of the file with the flags."""
    return rundir.path / _FILE
