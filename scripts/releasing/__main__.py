"""Builds a release, checks it, and lists what would be published; see scripts/release."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from releasing import artifacts, building, inventory, notes, provenance, rehearsal, state, trying
from releasing.running import ReleaseError

#: What a release has besides the sdist and the wheels.
_SBOM, _PROVENANCE, _NOTES = "sbom.cdx.json", "provenance.json", "RELEASE_NOTES.md"


def main() -> int:
    arguments = _arguments()
    root: Path = arguments.root
    try:
        version = state.checked(arguments.version or state.version_of(root), "the version")
        if not _may_be_made(root, version, arguments.dry_run or arguments.rehearse):
            return 1
        with tempfile.TemporaryDirectory(prefix="pytriton-release-") as folder:
            scratch = Path(folder)
            out = arguments.out or root / "dist" / version
            if arguments.rehearse:
                return _rehearse(root, scratch, version, arguments.former)
            release, source = _build(root, version, out, scratch, arguments.once)
            _write_papers(root, release, source, out, scratch)
            _try(release, scratch)
            _tell(out, version)
        return 0
    except (ReleaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _may_be_made(root: Path, version: str, draft: bool) -> bool:
    missing = [*state.lacks(root, version), *notes.undocumented(root, version)]
    for one in missing:
        print(f"{'note' if draft else 'error'}: {one}", file=sys.stderr)
    if missing and not draft:
        print("nothing was built; --dry-run builds all the same", file=sys.stderr)
    return draft or not missing


def _build(
    root: Path, version: str, out: Path, scratch: Path, once: bool
) -> tuple[rehearsal.Release, Path]:
    """Build into `out`, twice unless `once`; return the release and its exported source."""
    epoch = building.commit_time(root)
    print(f"building {version}", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = scratch / "source"
    built = _built_at(root, version, source, out, scratch / "first", epoch)
    if not once:
        print("building once more, to compare", flush=True)
        again = scratch / "again"
        again.mkdir()
        second = _built_at(root, version, scratch / "other", again, scratch / "second", epoch)
        differing = building.differing(built, second)
        if differing:
            raise ReleaseError(f"two builds of one commit differ: {', '.join(differing)}")
        print("both builds are the same, byte for byte")
    found = artifacts.faults(root, built)
    if found:
        raise ReleaseError("\n".join(found))
    artifacts.check_for_index(built)
    return rehearsal.Release(version, built), source


def _built_at(
    root: Path,
    version: str,
    source: Path,
    out: Path,
    scratch: Path,
    epoch: int,
    targets: Sequence[building.Target | None] = building.EVERYWHERE,
) -> building.Built:
    building.export(root, source, version)
    scratch.mkdir()
    return building.build(source, out, scratch, epoch, targets)


def _write_papers(
    root: Path, release: rehearsal.Release, source: Path, out: Path, scratch: Path
) -> None:
    """Write the SBOM, the provenance, the notes and the sums beside the files."""
    built = release.built
    environment = trying.make_environment(
        Path(sys.executable), scratch / "inventory", scratch / "no-cache"
    )
    trying.install(environment, str(built.wheel_for(trying.machine())))
    packages = inventory.installed(environment.python)
    epoch = building.commit_time(root)
    sbom = inventory.sbom(built, release.version, packages, source, epoch)
    inventory.check_sbom(sbom)
    (out / _SBOM).write_text(sbom, "utf-8")
    said = provenance.statement(root, built, release.version, "HEAD", epoch)
    (out / _PROVENANCE).write_text(said, "utf-8")
    changes = state.changes_of(root, release.version)
    text = notes.release_notes(release.version, changes, built, source)
    (out / _NOTES).write_text(text, "utf-8")
    papers = [out / name for name in (_SBOM, _PROVENANCE, _NOTES)]
    artifacts.write_sums([*built.files, *papers], out / "SHA256SUMS")


def _try(release: rehearsal.Release, scratch: Path) -> None:
    print("trying the wheels in empty environments", flush=True)
    for line in trying.try_all(release.built.wheel_for(trying.machine()), scratch):
        print(f"  {line}", flush=True)
    print(f"  {trying.try_client(release.built.wheels[-1], scratch)}")


def _rehearse(root: Path, scratch: Path, version: str, former_ref: str) -> int:
    """Rehearse an upgrade to a version, built for this machine alone, from what `former_ref` names."""
    former = state.version_at(root, former_ref)
    if former == version:
        raise ReleaseError(
            f"{former_ref} is of version {former}, too: name another with --former, or rehearse a version after it, "
            f"such as {state.next_patch(former)}"
        )
    print(f"building {former} ({former_ref}) and {version}", flush=True)
    source, out = scratch / "source", scratch / "out"
    out.mkdir()
    (scratch / "rehearsal").mkdir()
    epoch = building.commit_time(root)
    target = trying.own_target()
    built = _built_at(root, version, source, out, scratch / "coming", epoch, target)
    coming = rehearsal.Release(version, built)
    for line in rehearsal.rehearse(root, scratch / "rehearsal", coming, former_ref, former):
        print(f"  {line}", flush=True)
    return 0


def _tell(out: Path, version: str) -> None:
    print(f"what would be published as {state.tag_of(version)}:")
    for file in sorted(out.iterdir()):
        print(f"  {file.stat().st_size / 1e3:8.1f} kB  {file}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("version", nargs="?", help="X.Y.Z; default: that of pyproject.toml")
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what is missing, and build all the same"
    )
    parser.add_argument("--once", action="store_true", help="do not build twice to compare")
    parser.add_argument(
        "--rehearse", action="store_true", help="install, upgrade and downgrade from a local index"
    )
    parser.add_argument(
        "--former",
        metavar="REF",
        default="HEAD",
        help="with --rehearse: the commit or tag to upgrade from",
    )
    parser.add_argument("--out", type=Path, help="folder of the files; it is made anew")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
