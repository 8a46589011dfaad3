"""Stores models whose files came with the load request, each as a repository with one model.

Names are those of Triton's model repository extension: "file:1/model.onnx" is `model.onnx` of version 1.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

_PREFIX = "file:"


class BadFileName(ValueError):
    """A file name is not allowed in a model's folder."""


class MaterializedFiles:
    """The directory of such files, as SERIAL/MODEL/VERSION/FILE.

    Args:
        folder: the directory
        is_adopted: keep its content, which the version that was upgraded from serves; otherwise it is emptied
    """

    def __init__(self, folder: Path, *, is_adopted: bool = False) -> None:
        self._folder = folder
        last = 0
        if is_adopted and folder.exists():
            last = max((int(one.name) for one in folder.iterdir()), default=0)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self._serial = itertools.count(last + 1)

    def write(self, model: str, files: Mapping[str, bytes]) -> Path:
        """Write a model's files; return the repository that contains only this model.

        Raises:
            BadFileName: a name is not allowed.
            OSError: they cannot be written.
        """
        inside = {relative_path(name): content for name, content in files.items()}
        if "/" in model or model in ("", ".", ".."):
            raise BadFileName(f"{model!r} is not a valid name for a model with its own files")
        repository = self._folder / str(next(self._serial))
        try:
            for path, content in inside.items():
                place = repository / model / path
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                place.write_bytes(content)
        except OSError:
            self.remove(repository)
            raise
        return repository

    def remove(self, repository: Path | None) -> None:
        """Remove a repository that `write` returned; None is ignored."""
        if repository is not None:
            shutil.rmtree(repository, ignore_errors=True)


def relative_path(name: str) -> PurePosixPath:
    """Return the path within a model's folder for a file name.

    Raises:
        BadFileName: it lacks the prefix "file:", or leads out of the folder.

    Example:
        >>> str(relative_path("file:1/model.py"))
        '1/model.py'
    """
    path = PurePosixPath(name[len(_PREFIX) :])
    if not name.startswith(_PREFIX) or not path.name:
        raise BadFileName(f'{name!r} is not a valid file name: use "file:1/model.py"')
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadFileName(f"{name!r} leads out of the model's folder")
    return path
