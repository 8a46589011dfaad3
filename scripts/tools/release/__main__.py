"""Build and check a release, and list the files to publish. See scripts/release."""

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
    install_check,
    rehearsal,
    signatures,
    state,
)
from release.tool_runner import ReleaseError

#: Exit code: the files match their checksums, but the signature was not verified. argparse exits with 2.
_UNVERIFIED = 3


def main() -> int:
    """Run the command line; return the exit code."""
    arguments = _arguments()
    root: Path = arguments.root
    try:
        if arguments.verify:
            return _verify(arguments.verify, arguments.signers)
        version = state.checked(arguments.version or state.version_of(root), "the version")
        if not _is_ready(root, version, arguments.dry_run or arguments.rehearse):
            return 1
        commit = builder.commit_of(root, "HEAD", version)
        with tempfile.TemporaryDirectory(prefix="pytriton-release-") as folder:
            if arguments.rehearse:
                return _rehearse(commit, Path(folder), arguments.former)
            if arguments.sign:  # fail before minutes of work
                signatures.check_key(arguments.sign, root / signatures.SIGNERS, Path(folder))
            out = arguments.out or root / "dist" / version
            built = _build(commit, out, Path(folder), arguments.once)
            attachments.write(commit, built, out, Path(folder) / "first" / "source", Path(folder))
            _check_installation(built, Path(folder))
            if arguments.sign:
                _sign(out, arguments.sign, root / signatures.SIGNERS)
            _print_instructions(out, version)
        return 0
    except (ReleaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _is_ready(root: Path, version: str, draft: bool) -> bool:
    """Print what is missing for a release. For a draft, return True regardless."""
    missing = [*state.lacks(root, version), *attachments.undocumented(root, version)]
    for one in missing:
        print(f"{'note' if draft else 'error'}: {one}", file=sys.stderr)
    if missing and not draft:
        print("nothing was built; --dry-run builds anyway", file=sys.stderr)
    return draft or not missing


def _build(commit: builder.Commit, out: Path, scratch: Path, once: bool) -> builder.Built:
    """Build into `out`, which is recreated. Unless `once` is set, build a second time and compare."""
    print(f"building {commit.version}", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    built = builder.build_commit(commit, out, scratch / "first")
    if not once:
        print("building again to compare", flush=True)
        again = scratch / "again"
        again.mkdir()
        second = builder.build_commit(commit, again, scratch / "second")
        differing = builder.differing(built, second)
        if differing:
            raise ReleaseError(f"two builds of one commit differ: {', '.join(differing)}")
        print("both builds are identical", flush=True)
    found = artifacts.faults(commit.root, built, commit.id)
    if found:
        raise ReleaseError("\n".join(found))
    artifacts.check_for_index(built)
    return built


def _sign(out: Path, key: Path, signers: Path) -> None:
    """Sign the checksums, and verify everything as a user would."""
    signatures.check(
        out, None
    )  # the files must not have changed since their checksums were written
    signatures.sign(out / signatures.SUMS, key)
    for line in signatures.check(out, signers):
        print(line, flush=True)


def _verify(folder: Path, signers: Path | None) -> int:
    for line in signatures.check(folder, signers):
        print(line)
    if signers is None:
        print(
            "The signature was NOT verified: an attacker who replaces the files can also replace their checksums. "
            f"Verify it with --signers {signatures.SIGNERS}, a file in the repository.",
            file=sys.stderr,
        )
        return _UNVERIFIED
    return 0


def _check_installation(built: builder.Built, scratch: Path) -> None:
    print("checking the wheels in empty environments", flush=True)
    print(f"  {install_check.check_client(built.wheels[-1], scratch)}", flush=True)
    for line in install_check.check_all(built.wheel_for(install_check.machine()), scratch):
        print(f"  {line}", flush=True)


def _rehearse(coming: builder.Commit, scratch: Path, former_ref: str) -> int:
    """Rehearse an upgrade from the commit `former_ref`. Build both versions for this machine only."""
    version = state.version_at(coming.root, former_ref)
    if version == coming.version:
        raise ReleaseError(
            f"{former_ref} also has version {version}: give another commit with --former, or rehearse a later "
            f"version, such as {state.next_patch(version)}"
        )
    print(f"building {version} ({former_ref}) and {coming.version}", flush=True)
    former = builder.commit_of(coming.root, former_ref, version)
    for line in rehearsal.rehearse(former, coming, scratch):
        print(f"  {line}", flush=True)
    return 0


def _print_instructions(out: Path, version: str) -> None:
    print(f"files to publish as {state.tag_of(version)}:")
    for file in sorted(out.iterdir()):
        print(f"  {file.stat().st_size / 1e3:8.1f} kB  {file}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("version", nargs="?", help="X.Y.Z; default: the version in pyproject.toml")
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only warn if the tag, changelog entry or clean tree is missing",
    )
    parser.add_argument("--once", action="store_true", help="skip the second build")
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
        help=f"sign SHA256SUMS with this OpenSSH key, which {signatures.SIGNERS} must list",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FOLDER",
        help="build nothing; verify the files of a release in a folder",
    )
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="with --verify: file of permitted signers"
    )
    parser.add_argument("--out", type=Path, help="output folder; it is recreated")
    arguments = parser.parse_args()
    for name in ("dry_run", "once", "rehearse", "verify"):
        if arguments.sign and getattr(arguments, name):
            parser.error(
                f"--sign cannot be combined with --{name.replace('_', '-')}: only a fully checked release is signed"
            )
    if arguments.signers and not arguments.verify:
        parser.error("--signers requires --verify")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
