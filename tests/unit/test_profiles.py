"""Samples of a worker's stacks: shares, hot lines, flame graphs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from types import FunctionType

import pytest

from pytriton.profiles import IDLE, OURS, Frame, Profile, kind_of
from pytriton.worker.loop import Loop
from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop

LIB = "/run/pt/library/pytriton"
BOOT = f"thread (9): MainThread;<module> ({LIB}/worker/boot.py:60);run ({LIB}/worker/process.py:70)"
LOOP = f"{BOOT};Loop.run ({LIB}/worker/loop.py:90)"
CALL = f"{LOOP};Loop._serve ({LIB}/worker/loop.py:150);Model.answer ({LIB}/worker/model.py:200)"
USER = f"{CALL};infer (/home/me/<b>/my model.py:7)"
NUMPY = "/venv/lib/python3.11/site-packages/numpy/core/einsumfunc.py"
STACKS = {
    LOOP: 16,
    f"{CALL};write ({LIB}/worker/results.py:5)": 4,
    USER: 40,
    f"{USER};einsum ({NUMPY}:10)": 25,
    f"{USER};dumps (/usr/lib/python3.11/json/__init__.py:231)": 10,
    f"{USER};infer;other (/home/me/pytriton/own.py:1)": 5,
    "thread (10): helper;_bootstrap (/usr/lib/python3.11/threading.py:1002)": 100,
}


@pytest.fixture
def profile() -> Profile:
    lines = [f"{stack} {count}" for stack, count in STACKS.items()]
    return Profile("m", 0, "w1", 7, 1.0, 100, "\n".join([*lines, "no sample", ""]))


def test_shares_are_those_of_the_thread_that_serves(profile: Profile) -> None:
    assert profile.shares() == {
        "callable": 0.45, "libraries": 0.35, "pytriton": 0.04, "waiting for requests": 0.16,
    }  # fmt: skip
    assert sum(Profile("m", 0, "w", 1, 1, 1, "").shares().values()) == 0


def test_the_hottest_lines_exclude_waiting(profile: Profile) -> None:
    assert profile.hottest(2) == [
        ("infer (me/<b>/my model.py:7)", 0.4),
        ("einsum (numpy/core/einsumfunc.py:10)", 0.25),
    ]


@pytest.mark.parametrize("run", [Loop.run, DecoupledModelLoop.run])
def test_a_worker_in_its_own_loop_waits_for_requests(run: FunctionType) -> None:
    file = run.__code__.co_filename.rpartition("/pytriton/")[2]
    for name in (run.__name__, run.__qualname__):
        assert kind_of([Frame(name, f"{LIB}/{file}", run.__code__.co_firstlineno)]) == IDLE
    assert kind_of([Frame("Loop._serve", f"{LIB}/{file}", 1)]) == OURS


@pytest.mark.parametrize(
    ("between", "kind"),
    [("", "waiting for requests"), ("answer (/x/pytriton/worker/model.py)", "callable")],
)
def test_waiting_of_an_event_loop_is_classified(between: str, kind: str) -> None:
    frames = [Frame("run", f"{LIB}/worker/async_stream_loop.py", 1)]
    if between:
        frames.append(Frame("answer", "/x/pytriton/worker/model.py", 1))
    frames.append(Frame("select", "/usr/lib/python3.11/selectors.py", 468))
    assert kind_of(frames) == kind


def test_the_flame_graph_is_an_image_without_a_script(profile: Profile) -> None:
    picture = profile.svg()
    root = ET.fromstring(picture)
    titles = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "all threads: 100.0%"
    assert "infer (me/<b>/my model.py:7): 40.0%" in titles
    assert "einsum (numpy/core/einsumfunc.py:10): 12.5%" in titles
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rect.get("x") is not None:
            assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= 1200.2
    assert ET.fromstring(Profile("m", 0, "w", 1, 1, 1, "").svg()) is not None


def test_speedscope_gets_every_sample(profile: Profile) -> None:
    reported = json.loads(profile.speedscope())
    (one,) = reported["profiles"]
    assert one["endValue"] == pytest.approx(2.0)
    names = [reported["shared"]["frames"][index]["name"] for index in one["samples"][2]]
    assert names[-1] == "infer (me/<b>/my model.py:7)"
