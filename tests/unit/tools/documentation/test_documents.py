"""Check the documents of this checkout, and that each kind of problem is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation import documents

ROOT = Path(__file__).parents[4]


def test_the_documents_have_no_problems() -> None:
    found = [
        f"{one.path.relative_to(ROOT)}:{one.line}: {one.text}" for one in documents.findings(ROOT)
    ]
    assert found == []


def problems(text: str) -> list[tuple[int, str]]:
    tree = documents.tree_of(ROOT)
    return [*documents.invalid_code(text), *documents.stale_mentions(text, tree)]


@pytest.mark.parametrize(
    "span",
    [
        "dispatcher/daemon.py",
        "workers/suspension.py",  # the end of a path
        "dispatcher/",
        "proxy_backend/*.py",
        "/dev/shm",
        "models/linear/1",  # of a user
        "memory_budget",
        "PYTRITON_DAEMON_OWNER",
        "max_batch_size=8",
        "pytriton-daemon logs",  # its argument is missing
        "pytriton-daemon COMMAND --help",
    ],
)
def test_valid_mentions_are_accepted(span: str) -> None:
    assert problems(f"A page mentions `{span}`.") == []


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("dispatcher/gone.py", "no such file"),
        ("is_gone.py", "no such file"),
        ("scripts/gone", "no such file"),
        ("_".join(["memory", "budjet"]), "the code has no such name"),
        ("_".join(["PYTRITON", "GONE"]), "the code has no such name"),
        ("pytriton-daemon frobnicate", "No such command: frobnicate"),
        ("pytriton-daemon stop --gone", "No such option:? '?--gone"),  # depends on click
    ],
)
def test_mentions_of_missing_things_are_found(span: str, problem: str) -> None:
    ((line, text),) = problems(f"First.\n\nA page mentions `{span}`.")
    assert line == 3
    assert re.match(f"`{re.escape(span)}`: {problem}", text)


def test_names_in_the_pages_own_code_are_known() -> None:
    assert problems("```python\nmy_own_name = 1\n```\n\nThen `my_own_name`.") == []


@pytest.mark.parametrize(
    ("language", "code", "problem"),
    [
        ("python", "await model.infer(x)", ""),
        ("python", "def f(:", "invalid python"),
        ("toml", "a = 1", ""),
        ("toml", "a = ", "invalid toml"),
        ("yaml", "a: [1]", ""),
        ("yaml", "a: [1", "invalid yaml"),
        ("sh", "x=$(pytriton-daemon status --json)", ""),
        ("sh", "pytriton-daemon logs \\\n  m --lines 3 # the last ones", ""),
        ("sh", "a | /x/bin/pytriton-daemon scale; b", "pytriton-daemon scale: Missing parameter"),
        (
            "console",
            "$ pytriton-daemon keys lose alice",
            "pytriton-daemon keys lose alice: No such",
        ),
        ("console", "pytriton-daemon is installed --gone", ""),  # output
    ],
)
def test_code_blocks_are_checked(language: str, code: str, problem: str) -> None:
    found = problems(f"```{language}\n{code}\n```\n")
    assert len(found) == bool(problem)
    assert all(line == 1 and text.startswith(problem) for line, text in found)


def test_a_page_missing_in_the_navigation_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs" / "a").mkdir(parents=True)
    for name in ("here", "gone"):
        (tmp_path / "docs" / "a" / f"{name}.md").write_text("")
    (tmp_path / "mkdocs.yml").write_text("docs_dir: docs\nnav:\n  - A:\n      - Here: a/here.md\n")
    assert [one.path.name for one in documents.orphans(tmp_path)] == ["gone.md"]


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `title`, with marks\n\n```sh\n# no heading\n```\n")
    path = tmp_path / "one.md"
    path.write_text(
        "[a](gone.md)\n[b](other.md#a-title-with-marks) [c](other.md#no-heading)\n"
        "[d](https://example.org/gone) [e](#none)\n```\n[f](gone.md)\n```\n\n    [g](gone.md)\n"
    )
    assert [(one.line, one.text.partition(":")[0]) for one in documents.dead_links(path)] == [
        (1, "gone.md"),
        (2, "other.md#no-heading"),
        (3, "#none"),
    ]
