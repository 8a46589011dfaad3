"""What documents mention of the code is there; what is not there is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import code_references, documents
from support.command_line import whole_command_line

ROOT = Path(__file__).parents[4]


def gone(text: str) -> list[tuple[int, str]]:
    return list(code_references.gone(text, code_references.tree_of(ROOT), whole_command_line()))


@pytest.mark.parametrize(
    "path", documents.edited(ROOT), ids=lambda path: str(path.relative_to(ROOT))
)
def test_names_in_the_documents_exist(path: Path) -> None:
    found = documents.stale_mentions(ROOT, path)
    assert [f"{one.line}: {one.text}" for one in found] == []


@pytest.mark.parametrize(
    "span",
    [
        "dispatcher/daemon.py",
        "workers/suspension.py",  # the end of a path
        "daemon.py",
        "dispatcher/",
        "proxy_backend/*.py",
        "/dev/shm",
        "models/linear/1",  # of a user
        "bin/tritonserver",
        "memory_budget",
        "PYTRITON_DAEMON_OWNER",
        "max_batch_size=8",
        "anything else",
    ],
)
def test_existing_names_are_no_finding(span: str) -> None:
    assert gone(f"A page says `{span}`.") == []


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("dispatcher/gone.py", "there is no such file"),
        ("is_gone.py", "there is no such file"),
        ("scripts/gone", "there is no such file"),
        ("_".join(["memory", "budjet"]), "the code has no such name"),
        ("_".join(["PYTRITON", "GONE"]), "the code has no such name"),
    ],
)
def test_missing_names_are_found(span: str, problem: str) -> None:
    assert gone(f"First.\n\nA page says `{span}`.") == [(3, f"`{span}`: {problem}")]


def test_a_name_of_the_pages_own_code_is_known() -> None:
    assert gone("```python\nmy_own_name = 1\n```\n\nThen `my_own_name`.") == []


@pytest.mark.parametrize(
    ("command", "problems"),
    [
        ("status --json", []),
        ("start --detach --http-port 0", []),
        ("keys add alice --output FILE", []),
        ("fleet start -- --http-address 0.0.0.0", []),
        ("logs linear  # with --gone", []),
        ("start --gone", ["there is no flag --gone"]),
        ("keys lose alice", ["there is no command 'lose'"]),
        ("fleet drain NODE --quickly=1", ["there is no flag --quickly"]),
    ],
)
def test_commands_have_their_flags(command: str, problems: list[str]) -> None:
    for text in (
        f"Say `pytriton-daemon {command}`.",
        f"```console\n$ pytriton-daemon {command}\n```",
    ):
        assert [said.rpartition(": ")[2] for _, said in gone(text)] == problems


def test_a_line_that_goes_on_is_one_command() -> None:
    assert gone("```sh\npytriton-daemon start \\\n    --gone 1\n```\n") == [
        (2, "pytriton-daemon start      --gone 1: there is no flag --gone")
    ]


def test_text_that_is_no_command_is_none() -> None:
    assert gone("```\npytriton-daemon is installed --gone\n```") == []
