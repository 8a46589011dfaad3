"""net/limits.c: how much a client may leave unread, and for how long."""

from __future__ import annotations

import struct

import pytest
from support.frontend.driver import Driver

_LITTLE, _MAX_MEMORY, _UNSENT_MS = 64_000_000, 500_000_000, 60_000
_IDLE_MS = _UNSENT_MS // 12
_MEGABYTE = 1_000_000
_MUCH = _LITTLE + 1


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([(0, 0, _LITTLE), (10**9, 0, _LITTLE)], "..", id="a-little-for-ever"),
        pytest.param([(7, 0, _MUCH)], ".", id="much-at-once"),
        pytest.param([(7, 0, _MUCH), (6 + _IDLE_MS, 0, _MUCH)], "..", id="much-for-a-moment"),
        pytest.param([(7, 0, _MUCH), (7 + _IDLE_MS, 0, _MUCH)], ".x", id="nothing-is-read"),
        pytest.param([(7, 0, _MUCH), (7 + _IDLE_MS, 5000, _MUCH)], ".x", id="nearly-nothing"),
        pytest.param(
            [(i * _IDLE_MS, i * _MEGABYTE, _MUCH) for i in range(9)], "." * 9, id="it-reads-on"
        ),
        pytest.param(
            [
                *((i * _IDLE_MS, i * _MEGABYTE, _MUCH) for i in range(3)),
                (3 * _IDLE_MS, 2 * _MEGABYTE, _MUCH),
            ],
            "...x",
            id="it-reads-no-more",
        ),
        pytest.param(
            [(0, 0, _MUCH), (1, 9, _LITTLE), (_IDLE_MS, 9, _MUCH), (2 * _IDLE_MS, 9, _MUCH)],
            "...x",
            id="a-new-beginning",
        ),
        pytest.param(
            [(0, 0, _MAX_MEMORY), (1, _MAX_MEMORY, _MAX_MEMORY + 1)],
            ".x",
            id="too-much-for-anybody",
        ),
    ],
)
def test_unread_limits_of_one_client(
    driver: Driver, looks: list[tuple[int, int, int]], expected: str
) -> None:
    """Each check has a time, the bytes read by then, and the bytes waiting besides the newest response."""
    numbers = [_LITTLE, _MAX_MEMORY, _UNSENT_MS, *(number for look in looks for number in look)]
    question = struct.pack(f"<{len(numbers)}Q", *numbers)
    assert driver.ask("r", question).decode() == expected


def test_a_clients_memory_is_bounded_by_its_unread_limit(
    driver: Driver,
) -> None:
    """However large the responses are, and however fast it reads."""
    numbers = [_LITTLE, 1 << 50, _UNSENT_MS, 0, 0, 8 * _LITTLE, 1, _MEGABYTE, 8 * _LITTLE + 1]
    assert driver.ask("r", struct.pack(f"<{len(numbers)}Q", *numbers)) == b".x"


_TOTAL = 100 * _MEGABYTE
_HALF = _TOTAL // 2


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([(0, _HALF), (0, _HALF), (0, 1)], "..x", id="all-clients-together"),
        pytest.param([(0, 3 * _TOTAL), (0, 1)], ".x", id="one-answer-however-large-it-is"),
        pytest.param([(0, _HALF), (1, 1), (0, _HALF)], ".x.", id="half-is-for-those-who-read"),
        pytest.param(
            [(8 * _MEGABYTE, 1), (8 * _MEGABYTE + 1, 1), (0, 9 * _MEGABYTE)], ".x.", id="one-client"
        ),
    ],
)
def test_unread_limits_of_all_clients(
    driver: Driver, answers: list[tuple[int, int]], expected: str
) -> None:
    """Each response has a size, and the bytes that already wait for its client."""
    numbers = [_MEGABYTE, _TOTAL, *(number for answer in answers for number in answer)]
    said = driver.ask("w", struct.pack(f"<{len(numbers)}Q", *numbers)).decode()
    assert said.split()[0] == expected


def test_the_time_limit_shrinks_near_the_total_unread_limit(driver: Driver) -> None:
    calm = struct.pack("<4Q", _MEGABYTE, _TOTAL, 0, _HALF)
    pressed = struct.pack("<4Q", _MEGABYTE, _TOTAL, 0, _HALF + 1)
    assert driver.ask("w", calm).decode() == ". 60000"
    assert driver.ask("w", pressed).decode() == f". {_IDLE_MS + 1}"
