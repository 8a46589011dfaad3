"""Load shapes: how many requests come per second, at each moment."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

#: Requests per second at a moment.
Rate = Callable[[float], float]


class Shape(NamedTuple):
    """The load on each model for so many seconds; `most` is the highest rate of any."""

    seconds: float
    rates: Mapping[str, Rate]
    most: float


def step(high: float, seconds: float = 300.0) -> Shape:
    """A tenth of the load, from a fifth of the time on all of it, from four fifths on a tenth."""

    def rate(at: float) -> float:
        return high if seconds / 5 <= at < seconds * 4 / 5 else high / 10

    return Shape(seconds, {"model": rate}, high)


def square(high: float, seconds: float = 600.0, period_s: float = 120.0) -> Shape:
    """All of the load for half of each period, a tenth of it for the other half."""
    return Shape(
        seconds, {"model": lambda at: high if at % period_s >= period_s / 2 else high / 10}, high
    )


def sine(high: float, seconds: float = 1200.0, period_s: float = 400.0) -> Shape:
    """From nothing to all of the load and back."""
    turn = 2 * math.pi / period_s
    return Shape(seconds, {"model": lambda at: high * (1 - math.cos(turn * at)) / 2}, high)


def day(high: float, seconds: float = 7200.0) -> Shape:
    """A made-up day in two hours: a quiet night, a peak at noon and one in the evening, and some noise."""
    noise = random.Random(7)
    factors = [noise.uniform(0.8, 1.2) for _ in range(97)]

    def rate(at: float) -> float:
        hour = 24 * at / seconds
        noon = math.exp(-(((hour - 12) / 2.5) ** 2))
        evening = 0.7 * math.exp(-(((hour - 20) / 1.8) ** 2))
        return high / 1.2 * min(1.0, 0.03 + noon + evening) * factors[int(4 * hour) % 96]

    return Shape(seconds, {"model": rate}, high)


def zipf(total: float, models: int = 50, seconds: float = 600.0, exponent: float = 1.1) -> Shape:
    """Many models: the n-th gets 1/n**exponent of what the first one gets."""
    shares = [1 / n**exponent for n in range(1, models + 1)]
    rates = [total * share / sum(shares) for share in shares]
    return Shape(
        seconds,
        {f"m{n:02}": _steady(rate) for n, rate in enumerate(rates, 1)},
        rates[0],
    )


def _steady(rate: float) -> Rate:
    return lambda at: rate


def recorded(path: Path) -> Shape:
    """Read a load from a file: lines of "seconds,requests per second", each of which holds until the next.

    Raises:
        ValueError: a line is something else, or there are none.
    """
    rows: list[tuple[float, float]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        at, _, rate = line.partition(",")
        try:
            rows.append((float(at), float(rate)))
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: {line!r} is not 'seconds,requests per second'"
            ) from None
        if len(rows) > 1 and rows[-1][0] <= rows[-2][0]:
            raise ValueError(
                f"{path}, line {number}: its time is not after that of the line before"
            )
    if len(rows) < 2:
        raise ValueError(f"{path}: it takes two lines of 'seconds,requests per second' at least")
    begin = rows[0][0]
    times = [at - begin for at, _ in rows]
    rates = [rate for _, rate in rows]

    def rate_at(at: float) -> float:
        return rates[max(0, bisect.bisect_right(times, at) - 1)]

    return Shape(times[-1], {"model": rate_at}, max(rates))


def arrivals(rate: Rate, most: float, seconds: float, dice: random.Random) -> Iterator[float]:
    """Yield when requests come: independent of each other, at a rate that changes."""
    at = 0.0
    while most > 0:
        at += dice.expovariate(most)
        if at >= seconds:
            return
        if dice.random() * most < rate(at):
            yield at
