"""The response cache: which requests are answered from it, and which never are."""

from __future__ import annotations

import re

import pytest
from support.frontend.calls import Run

#: A request, in parts that a test may replace or add to.
X = ("input=IN:FP32:2", "data=0000803f00000040")
END = ("start", "wait", "counts")
CACHE = "cache=1000000"


def _counts(said: str) -> list[tuple[int, int, int]]:
    found = re.findall(r"hits (\d+) misses (\d+) entries (\d+)", said)
    return [(int(hits), int(misses), int(entries)) for hits, misses, entries in found]


def _request(*parts: str, model: str = "echo") -> tuple[str, ...]:
    return (f"model={model}", *parts, *END)


@pytest.mark.parametrize("model", ["echo", "thread"])
def test_a_repeated_request_is_answered_from_the_cache(calls: Run, model: str) -> None:
    said = calls(CACHE, *_request("id=a", *X, model=model), *_request("id=b", *X, model=model))
    assert _counts(said) == [(0, 1, 1), (1, 1, 1)]
    first, second = re.findall(r"answer.*\n.*", said)
    assert "output OUTIN FP32 [2] 8 0000803f00000040" in first
    assert second == first.replace("id=a", "id=b")


def test_split_inputs_have_the_same_key_as_whole_ones(calls: Run) -> None:
    pieces = ("input=IN:FP32:2", "data=000080", "data=3f00000040")
    assert _counts(calls(CACHE, *_request(*X), *_request(*pieces))) == [(0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize(
    "other",
    [
        ("input=IN:FP32:2", "data=0000803f00000041"),
        ("input=IN:FP32:1,2", "data=0000803f00000040"),
        ("input=IN:FP32:2,1", "data=0000803f00000040"),
        ("input=IN:INT32:2", "data=0000803f00000040"),
        ("input=NI:FP32:2", "data=0000803f00000040"),
        (*X, "input=OTHER:FP32:0"),
        ("param=lang:s:de", *X),
        ("param=lang:s:fr", *X),
        ("param=lang:s:", *X),
        ("param=lang:i:1", *X),
        ("param=lang:i:2", *X),
        ("param=lang:b:true", *X),
        ("param=lang:b:false", *X),
        ("param=lang:d:1", *X),
        ("param=lan:s:gde", *X),
        ("header=authorization:anna", *X),
        ("header=authorization:otto", *X),
        (*X, "output=OUTIN"),
        (*X, "output=OUTOTHER"),
    ],
)
def test_the_cache_key_covers_everything_a_model_sees(calls: Run, other: tuple[str, ...]) -> None:
    """A changed request is sent after the plain one, and before it: each gets its own cached response."""
    said = calls(CACHE, *_request(*X), *_request(*other), *_request(*X), *_request(*other))
    assert _counts(said) == [(0, 1, 1), (0, 2, 2), (1, 2, 2), (2, 2, 2)]


def test_each_version_has_its_own_responses(calls: Run) -> None:
    said = calls(CACHE, *_request(*X), *_request(*X, model="echo/1"))
    assert _counts(said) == [(0, 1, 1), (0, 2, 2)]


@pytest.mark.parametrize(
    "part",
    ["param=sequence_id:i:5", "param=sequence_id:s:five", "param=sequence_start:b:true"],
)
def test_requests_of_sequences_are_not_cached(calls: Run, part: str) -> None:
    said = calls(CACHE, *_request(part, *X), *_request(part, *X), *_request(*X))
    assert _counts(said) == [(0, 0, 0), (0, 0, 0), (0, 1, 1)]


def test_priority_and_timeout_are_not_part_of_the_key(calls: Run) -> None:
    said = calls(CACHE, *_request(*X), *_request("param=priority:i:1", "param=timeout:i:9", *X))
    assert _counts(said) == [(0, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize(("model", "wanted"), [("early", 0), ("many", 0), ("failing", 2)])
def test_uncacheable_responses_are_not_stored(calls: Run, model: str, wanted: int) -> None:
    """Of a model that does not use the cache, of a decoupled one, and errors."""
    request = _request("param=answers:i:1", *X, model=model)
    assert _counts(calls(CACHE, *request, *request))[-1] == (0, wanted, 0)


@pytest.mark.parametrize("change", ["load=coming", "unload=coming"])
def test_a_change_of_models_empties_the_cache(calls: Run, change: str) -> None:
    said = calls(CACHE, *_request(*X), change, "counts", *_request(*X), *_request(*X))
    assert _counts(said) == [(0, 1, 1), (0, 1, 0), (0, 2, 1), (1, 2, 1)]


def test_the_least_recently_used_response_is_evicted(calls: Run) -> None:
    """Two responses fit; a third one replaces the one that was used longest ago."""
    one, two, three = (("input=IN:FP32:1", f"data=0000000{n}") for n in range(3))
    requests = [_request(*data) for data in (one, two, one, three, one, two)]
    said = calls("cache=1600", *(part for request in requests for part in request))
    assert [hits for hits, _, _ in _counts(said)] == [0, 0, 1, 1, 2, 2]
    assert {entries for _, _, entries in _counts(said)} == {1, 2}


def test_a_response_larger_than_the_cache_is_not_stored(calls: Run) -> None:
    assert _counts(calls("cache=100", *_request(*X), *_request(*X)))[-1] == (0, 2, 0)
