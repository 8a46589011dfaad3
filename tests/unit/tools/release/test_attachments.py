"""What goes out beside the files of a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from release import artifacts, inventory, notes, state
from release.builder import Built

ROOT = Path(__file__).parents[4]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    for name in ("p-1.tar.gz", "p-1.whl"):
        (tmp_path / name).write_text(name)
    return Built(tmp_path / "p-1.tar.gz", (tmp_path / "p-1.whl",))


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"license_expression": "MIT", "license": "long text"}, "MIT"),
        ({"classifier": ["License :: OSI Approved :: MIT License", "Topic :: X"]}, "MIT License"),
        ({"license": "BSD"}, "BSD"),
        ({"license": "The text\nof a licence"}, "not named"),
        ({}, "not named"),
    ],
)
def test_the_licence_of_a_distribution(metadata: dict[str, object], licence: str) -> None:
    assert inventory.licence_of(metadata) == licence


def test_the_sbom_names_what_is_installed_and_what_is_fetched(built: Built) -> None:
    packages = [
        inventory.Package("msgspec", "0.19", "BSD", ()),
        inventory.Package("pytriton-daemon", "1.0.0", "Apache-2.0", ("msgspec", "not-here")),
    ]
    text = inventory.sbom(built, "1.0.0", packages, ROOT, 1_700_000_000)
    document = json.loads(text)
    names = {one["name"]: one for one in document["components"]}
    assert set(names) == {"msgspec", "nvidia-pytriton"}
    pin = inventory.tritonserver_pin(ROOT)
    assert names["nvidia-pytriton"]["hashes"] == [{"alg": "SHA-256", "content": pin["sha256"]}]
    assert {"ref": "pkg:pypi/pytriton-daemon@1.0.0", "dependsOn": ["pkg:pypi/msgspec@0.19"]} in (
        document["dependencies"]
    )
    assert text == inventory.sbom(built, "1.0.0", packages, ROOT, 1_700_000_000)


def test_the_notes_have_the_changes_and_the_sums(built: Built) -> None:
    text = notes.release_notes("1.0.0", "- A new thing.", built, ROOT)
    assert "# pytriton-daemon 1.0.0\n\n- A new thing.\n" in text
    assert f"{artifacts.digest(built.sdist)}  p-1.tar.gz\n" in text
    assert f"protocol {notes.formats(ROOT).protocol}." in text


def test_the_version_at_hand_has_its_row() -> None:
    """Whoever raises PROTOCOL, or the form of state files, writes the number down for users."""
    assert notes.undocumented(ROOT, state.version_of(ROOT)) == []


def test_a_version_without_its_row_is_reported(tmp_path: Path) -> None:
    for name, line in (
        ("dispatcher/models/persistence/state_dir.py", "_OWN_FORM = 1\n"),
        ("pytriton/_protocol/messages/base.py", "PROTOCOL = 12\n"),
        ("docs/place/releases.md", "| 0.1 | 1 | 12 | 0.1 |\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(line)
    assert notes.undocumented(tmp_path, "0.1.3") == []
    (reported,) = notes.undocumented(tmp_path, "0.2.0")
    assert "no row '| 0.2 | 1 | 12 |'" in reported
