"""The workspace: a folder of one `Triton` object, made at its start and removed at its stop."""

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
    """A workspace could not be removed, or not all of it."""


class Workspace:
    """A folder that is made now and removed by `clean`.

    Args:
        workspace_path: where; it must not exist. None: a new folder `workspace_*` in `$PYTRITON_HOME` (default:
            `pytriton` in `$XDG_CACHE_HOME` or `~/.cache`), or among the temporary files where that is not writable

    Raises:
        FileExistsError: it exists already
        OSError: it cannot be made

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
        """The folder."""
        return self._path

    @property
    def name(self) -> str:
        """Its last part."""
        return self._path.name

    @property
    def model_store_path(self) -> Path:
        """The folder where PyTriton keeps model files. Ours is empty: configurations go with the load requests."""
        return self._path / "model-store"

    def exists(self) -> bool:
        """Return whether the folder is there."""
        return self._path.exists()

    def is_empty(self) -> bool:
        """Return whether the folder is there and holds nothing."""
        return self.exists() and not any(self._path.iterdir())

    def clean(self) -> None:
        """Remove the folder with all that is in it; what cannot be removed is warned of (CleanupWarning)."""
        remove(self._path)

    def __repr__(self) -> str:
        return f"Workspace({str(self._path)!r})"


def new_path() -> Path:
    """Choose a folder for a new workspace, without making it."""
    name = f"workspace_{secrets.token_hex(4)}"
    home = pytriton_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home folder, or one that cannot be written: containers have such
        return Path(tempfile.gettempdir(), name)
    return (home if os.access(home, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())) / name


def remove(path: Path) -> None:
    """Remove a workspace with all that is in it; what cannot be removed is warned of (CleanupWarning)."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        warnings.warn(
            f"The workspace {path} could not be removed: {error}. Remove it yourself.",
            category=CleanupWarning,
            stacklevel=3,
        )
