"""The report of a check: a folder of text files, and an archive of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zipfile
from pathlib import Path

ARCHIVE = "pytriton_check.zip"


class Report:
    """A folder with the output of one check, as a context manager.

    Args:
        folder: the folder to create for the files and the archive; it must not exist. None: the files go to a temporary
            folder that is deleted at the end, and the archive to the working directory

    Raises:
        FileExistsError: the folder exists
        OSError: the folder cannot be created
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._stays = folder is not None
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="pytriton-check-"))
        else:
            folder.mkdir(parents=True)
            self.folder = folder.absolute()

    def file(self, name: str) -> Path:
        """Return the path for a file in the report's folder."""
        return self.folder / name

    def archive(self) -> Path:
        """Write all files to an archive, and return its path.

        Raises:
            OSError: the archive cannot be written
        """
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        target = self.file(ARCHIVE) if self._stays else _unused(Path.cwd())
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(self.folder))
        return target

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stays:
            shutil.rmtree(self.folder, ignore_errors=True)


def _unused(folder: Path) -> Path:
    stem = time.strftime("pytriton_check_%Y%m%d_%H%M%S")
    path = folder / f"{stem}.zip"
    return path if not path.exists() else folder / f"{stem}_{os.getpid()}.zip"
