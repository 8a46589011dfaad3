"""A model may be loaded while a request looks it up: then the request looks it up again (waiters.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.frontend.c_programs import built


def test_a_model_that_arrives_during_the_request_is_looked_up_again(tmp_path: Path) -> None:
    rooms = ("base/*.c", "memory/*.c", "core/pending_models.c")
    program = built(Path(__file__).with_name("waiters.c"), rooms, tmp_path)
    done = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == [
        "one that is to come: comes, awaited",
        "another name: unknown, none",
        "one that came meanwhile: comes, awaited",
        "one that had come before: unknown, none",
        "the last one, that came meanwhile: comes, awaited",
        "the last one, that had come before: unknown, none",
        "where none comes: unknown, none",
    ]
