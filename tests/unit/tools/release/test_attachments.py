"""Check the files that accompany a release."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from release import artifacts, attachments, state
from release.builder import Built

ROOT = Path(__file__).parents[4]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    for name in ("p-1.tar.gz", "p-1.whl"):
        (tmp_path / name).write_text(name)
    return Built(tmp_path / "p-1.tar.gz", (tmp_path / "p-1.whl",))


@pytest.mark.programs
def test_the_sbom_lists_the_installation_and_tritonserver(built: Built) -> None:
    pytest.importorskip("cyclonedx_py")
    text = attachments.sbom(Path(sys.executable), built, ROOT, 1_700_000_000)
    document = json.loads(text)
    components = {one["name"]: one for one in document["components"]}
    assert {"msgspec", "numpy"} <= set(components)
    assert "pip" not in components
    pin = attachments.tritonserver_pin(ROOT)
    assert components["nvidia-pytriton"]["hashes"] == [{"alg": "SHA-256", "content": pin["sha256"]}]
    own = document["metadata"]["component"]
    assert own["purl"].startswith("pkg:pypi/pytriton-daemon@")
    assert own["hashes"][0]["content"] == artifacts.digest(built.sdist)
    assert text == attachments.sbom(Path(sys.executable), built, ROOT, 1_700_000_000)


def test_the_notes_contain_changes_and_checksums(built: Built) -> None:
    text = attachments.release_notes("1.0.0", "- A new thing.", built, ROOT)
    assert "# pytriton-daemon 1.0.0\n\n- A new thing.\n" in text
    assert f"{artifacts.digest(built.sdist)}  p-1.tar.gz\n" in text
    assert f"protocol {attachments.formats(ROOT).protocol}." in text


def test_the_current_version_has_its_row() -> None:
    """The page for users must list the current PROTOCOL and format of state files."""
    assert attachments.undocumented(ROOT, state.version_of(ROOT)) == []


def test_a_missing_row_is_reported(tmp_path: Path) -> None:
    for name, line in (
        ("dispatcher/models/persistence/state_dir.py", "_OWN_FORM = 1\n"),
        ("pytriton/_protocol/messages/base.py", "PROTOCOL = 12\n"),
        ("docs/operations/releases.md", "| 0.1 | 1 | 12 | 0.1 |\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(line)
    assert attachments.undocumented(tmp_path, "0.1.3") == []
    (problem,) = attachments.undocumented(tmp_path, "0.2.0")
    assert "no row '| 0.2 | 1 | 12 |'" in problem
