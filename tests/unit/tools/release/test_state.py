"""Check what a release requires of the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from release import state

_CHANGELOG = """# Changelog

## [Unreleased]

- something new

## [1.2.0] - 2026-01-02

- a feature
- a fix

## [1.1.0] - 2025-12-01
"""


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of version 1.2.0, with its changelog, committed and tagged."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(_CHANGELOG)
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "-m", "first")
    _git(tmp_path, "tag", "--annotate", "v1.2.0", "-m", "1.2.0")
    return tmp_path


def test_a_tagged_commit_with_a_changelog_is_complete(repository: Path) -> None:
    assert state.lacks(repository, state.version_of(repository)) == []


def test_uncommitted_changes_are_reported(repository: Path) -> None:
    (repository / "more.py").write_text("")
    assert state.lacks(repository, "1.2.0") == ["the working tree has uncommitted changes"]


def test_a_tag_at_another_commit_is_reported(repository: Path) -> None:
    _git(repository, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert state.lacks(repository, "1.2.0") == ["tag v1.2.0 points to another commit"]


@pytest.mark.parametrize("version", ["1.3.0", "1.1.0"], ids=["no section", "an empty section"])
def test_a_version_without_changes_or_tag_is_reported(repository: Path, version: str) -> None:
    assert state.lacks(repository, version) == [
        f"pyproject.toml has version 1.2.0, not {version}",
        f"CHANGELOG.md has no section '## [{version}] - DATE' with text below it",
        f"tag v{version} does not exist: git tag --annotate v{version}",
    ]


def test_a_section_ends_where_the_next_begins() -> None:
    assert state.changelog_section(_CHANGELOG, "1.2.0") == "- a feature\n- a fix"


@pytest.mark.parametrize("version", ["1.2.0", "0.10.3", "1.0.0a1", "2.0.0rc12"])
def test_valid_versions(tmp_path: Path, version: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    assert state.version_of(tmp_path) == version


@pytest.mark.parametrize("version", ["1.2", "v1.2.0", "1.2.0.dev1", "1.2.0+local", ""])
def test_invalid_versions(tmp_path: Path, version: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    with pytest.raises(ValueError, match="must have the form"):
        state.version_of(tmp_path)


def test_the_version_of_a_tag(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[project]\nversion = "1.3.0"\n')
    assert state.version_at(repository, "v1.2.0") == "1.2.0"
    with pytest.raises(ValueError, match="v9"):
        state.version_at(repository, "v9")


@pytest.mark.parametrize(
    ("version", "following"), [("1.2.0", "1.2.1"), ("0.10.9", "0.10.10"), ("1.0.0rc2", "1.0.1")]
)
def test_the_next_patch_release(version: str, following: str) -> None:
    assert state.next_patch(version) == following


def test_a_coming_version_gets_the_unreleased_changes(repository: Path) -> None:
    assert state.changes_of(repository, "1.2.0") == "- a feature\n- a fix"
    assert state.changes_of(repository, "1.3.0") == "- something new"
