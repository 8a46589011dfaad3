"""Builds a release, checks it, and lists what would be published; see scripts/release."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from release import (
    artifacts,
    attachments,
    builder,
    images,
    install_check,
    notes,
    rehearsal,
    signatures,
    state,
)
from release.tool_runner import ReleaseError

#: The files of a release fit each other, but nobody has looked at who made them. 2 is a wrong command line.
_NOT_WHO = 3


def main() -> int:
    arguments = _arguments()
    root: Path = arguments.root
    try:
        if arguments.verify:
            return _verify(arguments.verify, arguments.signers)
        if arguments.run_dockerfile:
            return _run_dockerfile(root)
        version = state.checked(arguments.version or state.version_of(root), "the version")
        if not _may_be_made(root, version, arguments.dry_run or arguments.rehearse):
            return 1
        commit = builder.commit_of(root, "HEAD", version)
        with tempfile.TemporaryDirectory(prefix="pytriton-release-") as folder:
            if arguments.rehearse:
                return _rehearse(commit, Path(folder), arguments.former)
            if arguments.sign:  # before minutes of work
                signatures.check_key(arguments.sign, root / signatures.SIGNERS, Path(folder))
            out = arguments.out or root / "dist" / version
            built = _build(commit, out, Path(folder), arguments.once)
            attachments.write(commit, built, out, Path(folder) / "first" / "source", Path(folder))
            _try(built, Path(folder))
            if arguments.sign:  # what was tried, and nothing else
                _sign(out, arguments.sign, root / signatures.SIGNERS)
            _print_instructions(out, version)
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


def _build(commit: builder.Commit, out: Path, scratch: Path, once: bool) -> builder.Built:
    """Build into `out`, which is made anew, and unless `once` a second time, to compare."""
    print(f"building {commit.version}", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    built = builder.build_commit(commit, out, scratch / "first")
    if not once:
        print("building once more, to compare", flush=True)
        again = scratch / "again"
        again.mkdir()
        second = builder.build_commit(commit, again, scratch / "second")
        differing = builder.differing(built, second)
        if differing:
            raise ReleaseError(f"two builds of one commit differ: {', '.join(differing)}")
        print("both builds are the same, byte for byte", flush=True)
    found = artifacts.faults(commit.root, built, commit.id)
    if found:
        raise ReleaseError("\n".join(found))
    artifacts.check_for_index(built)
    return built


def _sign(out: Path, key: Path, signers: Path) -> None:
    """Sign the sums, and look at all of it as those who download the files will."""
    signatures.check(
        out, None
    )  # a signature vouches for files: they are still those that were summed
    signatures.sign(out / signatures.SUMS, key)
    for line in signatures.check(out, signers):
        print(line, flush=True)


def _verify(folder: Path, signers: Path | None) -> int:
    for line in signatures.check(folder, signers):
        print(line)
    if signers is None:
        print(
            "NOT CHECKED: who made these files. Nobody looked at the signature: whoever exchanges the files exchanges "
            f"their sums, too. --signers {signatures.SIGNERS} names who may sign; take it from the repository",
            file=sys.stderr,
        )
        return _NOT_WHO
    return 0


def _run_dockerfile(root: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="pytriton-image-") as folder:
        dockerfile = root / "deploy" / "images" / "Dockerfile"
        for line in images.play(dockerfile, root, Path(folder)):
            print(f"  {line}", flush=True)
    return 0


def _try(built: builder.Built, scratch: Path) -> None:
    print("trying the wheels in empty environments", flush=True)
    print(f"  {install_check.try_client(built.wheels[-1], scratch)}", flush=True)
    for line in install_check.try_all(built.wheel_for(install_check.machine()), scratch):
        print(f"  {line}", flush=True)


def _rehearse(coming: builder.Commit, scratch: Path, former_ref: str) -> int:
    """Rehearse an upgrade to a version, built for this machine alone, from what `former_ref` names."""
    version = state.version_at(coming.root, former_ref)
    if version == coming.version:
        raise ReleaseError(
            f"{former_ref} is of version {version}, too: name another with --former, or rehearse a version after it, "
            f"such as {state.next_patch(version)}"
        )
    print(f"building {version} ({former_ref}) and {coming.version}", flush=True)
    former = builder.commit_of(coming.root, former_ref, version)
    for line in rehearsal.rehearse(former, coming, scratch):
        print(f"  {line}", flush=True)
    return 0


def _print_instructions(out: Path, version: str) -> None:
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
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help=f"sign SHA256SUMS with this key of OpenSSH, which {signatures.SIGNERS} has to name",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FOLDER",
        help="build nothing; check the files of a release that lie in a folder",
    )
    parser.add_argument(
        "--run-dockerfile",
        action="store_true",
        help="build nothing; run the steps of deploy/images/Dockerfile below a folder, without an engine",
    )
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="with --verify: whose signature counts"
    )
    parser.add_argument("--out", type=Path, help="folder of the files; it is made anew")
    arguments = parser.parse_args()
    for name in ("dry_run", "once", "rehearse", "verify", "run_dockerfile"):
        if arguments.sign and getattr(arguments, name):
            parser.error(
                f"--sign cannot be combined with --{name.replace('_', '-')}: only a fully checked release is signed"
            )
    if arguments.signers and not arguments.verify:
        parser.error("--signers requires --verify")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
