"""Check the repository before a release: version, tag, changelog, no uncommitted changes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Permitted versions: https://packaging.python.org/en/latest/specifications/version-specifiers/
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?P<rest>.*)$", re.MULTILINE)


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml.

    Raises:
        ValueError: it is not of the form X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN
    """
    return _version_in((root / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml")


def version_at(root: Path, ref: str) -> str:
    """Return the version in pyproject.toml of a commit or tag.

    Raises:
        ValueError: the version is invalid, or there is no such commit
    """
    command = ["git", "-C", str(root), "show", f"{ref}:pyproject.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{ref}: {done.stderr.strip()}")
    return _version_in(done.stdout, f"pyproject.toml of {ref}")


def _version_in(text: str, where: str) -> str:
    return checked(str(tomllib.loads(text)["project"]["version"]), where)


def checked(version: str, where: str) -> str:
    """Return the version if it is valid.

    Raises:
        ValueError: it is not of the form X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN; the message contains `where`
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(
            f"{where}: version {version!r} must have the form X.Y.Z, X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN"
        )
    return version


def next_patch(version: str) -> str:
    """Return the version of the next patch release."""
    major, minor, patch = re.split(r"\.", re.sub(r"(a|b|rc)\d+$", "", version))
    return f"{major}.{minor}.{int(patch) + 1}"


def tag_of(version: str) -> str:
    """Return the git tag of a version."""
    return f"v{version}"


def changelog_section(text: str, version: str) -> str | None:
    """Return the section of a changelog about a version, without its heading; None if it has no such section."""
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None]):
        if heading["version"] == version:
            return text[heading.end() : following.start() if following else len(text)].strip()
    return None


def changes_of(root: Path, version: str) -> str:
    """Return the section of the changelog about a version or, if there is none, the unreleased changes."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return changelog_section(text, version) or changelog_section(text, "Unreleased") or ""


def lacks(root: Path, version: str) -> list[str]:
    """Return what is missing before this version can be published, one sentence each."""
    missing = []
    written = version_of(root)
    if written != version:
        missing.append(f"pyproject.toml has version {written}, not {version}")
    changes = changelog_section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not changes:
        missing.append(f"CHANGELOG.md has no section '## [{version}] - DATE' with text below it")
    if _git(root, "status", "--porcelain"):
        missing.append("the working tree has uncommitted changes")
    tag = tag_of(version)
    if _git(root, "tag", "--list", tag) != tag:
        missing.append(f"tag {tag} does not exist: git tag --annotate {tag}")
    elif _git(root, "rev-parse", f"{tag}^{{commit}}") != _git(root, "rev-parse", "HEAD"):
        missing.append(f"tag {tag} points to another commit")
    return missing


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
