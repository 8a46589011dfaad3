"""Builds a release, checks it, and lists what would be published; see scripts/release."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from releasing import artifacts, state


def main() -> int:
    arguments = _arguments()
    root: Path = arguments.root
    try:
        version = state.version_of(root)
        missing = state.lacks(root, version)
        for one in missing:
            print(f"{'note' if arguments.draft else 'error'}: {one}", file=sys.stderr)
        if missing and not arguments.draft:
            print("nothing was built; --draft builds all the same", file=sys.stderr)
            return 1
        return _make(root, version, arguments.out or root / "dist" / version)
    except (artifacts.ReleaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _make(root: Path, version: str, out: Path) -> int:
    print(f"building {version}", flush=True)
    files = artifacts.build(root, out)
    found = artifacts.faults(root, files)
    for one in found:
        print(f"error: {one}", file=sys.stderr)
    artifacts.check_metadata(files)
    print("installing the wheel into an empty environment", flush=True)
    with tempfile.TemporaryDirectory(prefix="pytriton-release-") as folder:
        print(artifacts.try_installation(files[1], Path(folder)))
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{artifacts.digest(file)}  {file.name}\n" for file in files))
    print(f"what would be published as {state.tag_of(version)}:")
    for file in [*files, sums]:
        print(f"  {file.stat().st_size / 1e3:8.1f} kB  {file}")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--draft", action="store_true", help="tell what is missing, and build")
    parser.add_argument("--out", type=Path, help="folder of the files; it is made anew")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
