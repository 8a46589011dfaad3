"""Reading log files: their end, across rotation, and new lines."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytriton._host.log_files import follow, tail


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))),
    count=st.integers(0, 12),
    split=st.integers(0, 12),
)
def test_tail_is_the_end_of_all_lines(
    lines: list[str], count: int, split: int, tmp_path: Path
) -> None:
    path = tmp_path / "t.log"
    older, newer = lines[:split], lines[split:]
    path.with_name("t.log.1").write_bytes("".join(f"{line}\n" for line in older).encode())
    path.write_bytes("".join(f"{line}\n" for line in newer).encode())
    assert tail(path, count) == (lines[-count:] if count else [])


def test_a_log_that_does_not_exist_has_no_lines(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log", 5) == []


def test_tail_reads_lines_longer_than_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    long = ["a" * 200_000, "b" * 70_000, "c"]
    path.write_text("\n".join(long) + "\n")
    assert tail(path, 2) == long[1:]


def test_follow_survives_rotation_and_waits_for_a_missing_log(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    steps = [threading.Event() for _ in range(2)]

    def write() -> None:
        path.write_text("one\ntwo\n")
        steps[0].wait(30)
        with open(path, "a") as file:
            file.write("three\n")
        path.rename(tmp_path / "f.log.1")
        path.write_text("four\n")
        steps[1].wait(30)
        with open(path, "a") as file:
            file.write("fi")
            file.flush()
            file.write("ve\n")

    writer = threading.Thread(target=write)
    with closing(follow(path, 10)) as stream:
        writer.start()
        assert [next(stream), next(stream)] == ["one", "two"]
        steps[0].set()
        assert [next(stream), next(stream)] == ["three", "four"]
        steps[1].set()
        assert next(stream) == "five"
    writer.join()


def test_follow_starts_with_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    path.write_text("a\nb\nc\n")
    with closing(follow(path, 2)) as stream:
        assert [next(stream), next(stream)] == ["b", "c"]
        with open(path, "a") as file:
            file.write("d\n")
        assert next(stream) == "d"
