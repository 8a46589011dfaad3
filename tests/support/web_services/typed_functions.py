"""The endpoints as typed functions."""

from __future__ import annotations

import enum
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import msgspec
import pydantic
from PIL import Image

from pytriton import MediaType, batchable

Pixels = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Value = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


class Customer(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=150)
    income: float
    city: Optional[str] = None


class Scored(pydantic.BaseModel):
    churn: float
    city: Optional[str] = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: Value
    y: Value


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def labels(text: str, top_k: int = 2) -> list[str]:
    return sorted(set(text.split()))[:top_k]


def churn(customer: Customer) -> Scored:
    return Scored(churn=min(1.0, customer.age / 100), city=customer.city)


def image_size(image_file: Image.Image) -> dict[str, int]:
    return {"width": image_file.width, "height": image_file.height}


def picture(width: Pixels, height: Pixels) -> Annotated[bytes, MediaType("image/png")]:
    return png(width, height)


def words(text: str) -> Iterator[str]:
    yield from text.split()


async def shout(text: str) -> str:
    return text.upper()


@batchable(max_batch_size=16)
def lengths(text: list[str]) -> list[int]:
    return [len(one) for one in text]


def paint(colour: Colour, finish: Literal["matt", "gloss"]) -> dict[str, str]:
    return {"paint": f"{finish} {colour.value}"}


def norms(rows: list[list[Value]], points: list[Point]) -> dict[str, list[float]]:
    return {
        "rows": [sum(value * value for value in row) for row in rows],
        "points": [point.x + point.y for point in points],
    }


def optional(a: Optional[int] = None, b: Optional[str] = "b", c: Optional[list[int]] = None) -> Any:
    return {"a": a, "b": b, "c": c}


def size(data: bytes) -> dict[str, int]:
    return {"size": len(data)}


def reverse(data: bytes) -> bytes:
    return data[::-1]


ALL = (
    labels,
    churn,
    image_size,
    picture,
    words,
    shout,
    lengths,
    paint,
    norms,
    optional,
    size,
    reverse,
)
