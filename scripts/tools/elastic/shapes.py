"""Load shapes: the request rate of each model as a function of time."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

#: Time in seconds -> requests per second.
Rate = Callable[[float], float]


class Shape(NamedTuple):
    """The request rates of models for a number of seconds. No rate exceeds `peak`."""

    seconds: float
    rates: Mapping[str, Rate]
    peak: float


def step(peak: float, seconds: float = 300.0) -> Shape:
    """A tenth of the peak rate, then the peak rate from 20 % to 80 % of the time."""

    def rate(at: float) -> float:
        return peak if seconds / 5 <= at < seconds * 4 / 5 else peak / 10

    return Shape(seconds, {"model": rate}, peak)


def square(peak: float, seconds: float = 600.0, period_s: float = 120.0) -> Shape:
    """A tenth of the peak rate in the first half of each period, the peak rate in the second half."""

    def rate(at: float) -> float:
        return peak if at % period_s >= period_s / 2 else peak / 10

    return Shape(seconds, {"model": rate}, peak)


def sine(peak: float, seconds: float = 1200.0, period_s: float = 400.0) -> Shape:
    """Between zero and the peak rate."""
    turn = 2 * math.pi / period_s
    return Shape(seconds, {"model": lambda at: peak * (1 - math.cos(turn * at)) / 2}, peak)


def day(peak: float, seconds: float = 7200.0) -> Shape:
    """An invented day, compressed into two hours: a quiet night, peaks at noon and in the evening, and noise."""
    noise = random.Random(7)
    factors = [noise.uniform(0.8, 1.2) for _ in range(97)]

    def rate(at: float) -> float:
        hour = 24 * at / seconds
        noon = math.exp(-(((hour - 12) / 2.5) ** 2))
        evening = 0.7 * math.exp(-(((hour - 20) / 1.8) ** 2))
        return peak / 1.2 * min(1.0, 0.03 + noon + evening) * factors[int(4 * hour) % 96]

    return Shape(seconds, {"model": rate}, peak)


def zipf(total: float, models: int = 50, seconds: float = 600.0) -> Shape:
    """Many models with constant rates: the n-th gets 1/n**1.1 of the first one's rate."""
    shares = [1 / n**1.1 for n in range(1, models + 1)]
    rates = [total * share / sum(shares) for share in shares]
    return Shape(
        seconds, {f"m{n:02}": _constant(rate) for n, rate in enumerate(rates, 1)}, rates[0]
    )


def _constant(rate: float) -> Rate:
    return lambda at: rate


def recorded(path: Path) -> Shape:
    """Read a load from a file with lines of "seconds,requests per second". Each rate holds until the next line.

    Raises:
        ValueError: a line is invalid, or there are fewer than two
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
            raise ValueError(f"{path}, line {number}: its time is not later than the previous one")
    if len(rows) < 2:
        raise ValueError(f"{path}: needs at least two lines of 'seconds,requests per second'")
    times = [at - rows[0][0] for at, _ in rows]
    rates = [rate for _, rate in rows]

    def rate_at(at: float) -> float:
        return rates[max(0, bisect.bisect_right(times, at) - 1)]

    return Shape(times[-1], {"model": rate_at}, max(rates))


def arrivals(shape: Shape, seed: int) -> list[tuple[float, str]]:
    """Return the times at which requests arrive, with the model of each: a Poisson process per model."""
    chance = random.Random(seed)
    return sorted(
        (at, model)
        for model, rate in shape.rates.items()
        for at in _poisson(rate, shape, random.Random(chance.random()))
    )


def _poisson(rate: Rate, shape: Shape, chance: random.Random) -> Iterator[float]:
    at = 0.0
    while shape.peak > 0:
        at += chance.expovariate(shape.peak)
        if at >= shape.seconds:
            return
        if chance.random() * shape.peak < rate(at):
            yield at
