"""The papers of a release, beside its files: the SBOM, the provenance, the notes, and the sums of all of them."""

from __future__ import annotations

import sys
from pathlib import Path

from release import artifacts, install_check, inventory, notes, provenance, state
from release.builder import Built, Commit
from release.signatures import SUMS


def write(commit: Commit, built: Built, out: Path, source: Path, scratch: Path) -> None:
    """Write them into the folder of the files.

    Args:
        commit: what the files were built from
        built: the files
        out: their folder
        source: the exported commit
        scratch: a folder for the environment whose packages the SBOM names

    Raises:
        ReleaseError: the wheel cannot be installed, or the SBOM is not in order.
    """
    environment = install_check.make_environment(
        Path(sys.executable), scratch / "inventory", scratch / "no-cache"
    )
    install_check.install(environment, str(built.wheel_for(install_check.machine())))
    packages = inventory.installed(environment.python)
    sbom = inventory.sbom(built, commit.version, packages, source, commit.epoch)
    inventory.check_sbom(sbom)
    changes = state.changes_of(commit.root, commit.version)
    papers = {
        "sbom.cdx.json": sbom,
        "provenance.json": provenance.statement(built, commit),
        "RELEASE_NOTES.md": notes.release_notes(commit.version, changes, built, source),
    }
    for name, text in papers.items():
        (out / name).write_text(text, "utf-8")
    artifacts.write_sums([*built.files, *(out / name for name in papers)], out / SUMS)
