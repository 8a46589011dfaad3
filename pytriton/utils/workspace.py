"""The workspace: a folder of one `Triton` object, created when it starts and removed when it stops."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import warnings
from pathlib import Path

from pytriton.constants import pytriton_home

__all__ = ["CleanupWarning", "Workspace"]


class CleanupWarning(UserWarning):
    """Warning that a workspace could not be removed completely."""


class Workspace:
    """A folder that is created by the constructor and removed by `clean`.

    Args:
        workspace_path: path of the folder, which must not exist yet. None: a new folder `workspace_*` in
            `$PYTRITON_HOME` (default: `pytriton` in `$XDG_CACHE_HOME` or `~/.cache`), or in the temporary directory
            if that folder is not writable

    Raises:
        FileExistsError: the path already exists
        OSError: the folder cannot be created

    Example:
        >>> triton = Triton(workspace=Workspace("/tmp/my_workspace"))  # doctest: +SKIP
    """

    def __init__(self, workspace_path: str | os.PathLike[str] | None = None) -> None:
        self._path = (
            new_path() if workspace_path is None else Path(workspace_path).expanduser().absolute()
        )
        self._path.mkdir(parents=True, mode=0o700)

    @property
    def path(self) -> Path:
        """The absolute path of the folder."""
        return self._path

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self._path.name

    @property
    def model_store_path(self) -> Path:
        """The path of PyTriton's model store. It is not used: load requests contain the models' configurations."""
        return self._path / "model-store"

    def exists(self) -> bool:
        """Return whether the folder exists."""
        return self._path.exists()

    def is_empty(self) -> bool:
        """Return whether the folder exists and is empty."""
        return self.exists() and not any(self._path.iterdir())

    def clean(self) -> None:
        """Remove the folder and its contents. Issue a CleanupWarning if that fails."""
        remove(self._path)

    def __repr__(self) -> str:
        return f"Workspace({str(self._path)!r})"


def new_path() -> Path:
    """Choose a path for a new workspace, without creating the folder."""
    name = f"workspace_{secrets.token_hex(4)}"
    home = pytriton_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:  # the home folder is missing or not writable, as in some containers
        return Path(tempfile.gettempdir(), name)
    return (home if os.access(home, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())) / name


def remove(path: Path) -> None:
    """Remove a workspace and its contents. Issue a CleanupWarning if that fails."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        warnings.warn(
            f"The workspace {path} could not be removed: {error}. Remove it manually.",
            category=CleanupWarning,
            stacklevel=3,
        )
