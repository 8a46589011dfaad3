"""The endpoints for LitServe, each an API of its own. It uploads one file, in the field `request`."""

# ruff: noqa: I002  LitServe cannot resolve postponed annotations

import enum
import io
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Optional

import litserve as ls
import pydantic
from fastapi import Body, HTTPException, Response, UploadFile
from PIL import Image, UnidentifiedImageError

Pixels = Annotated[int, pydantic.Field(ge=1, le=1000)]
Value = Annotated[float, pydantic.Field(ge=-1e6, le=1e6)]
RawBody = Annotated[bytes, Body(media_type="application/octet-stream")]


class Text(pydantic.BaseModel):
    text: str


class LabelsInput(pydantic.BaseModel):
    text: str
    top_k: int = 2


class Customer(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=150)
    income: float
    city: Optional[str] = None


class Scored(pydantic.BaseModel):
    churn: float
    city: Optional[str] = None


class Size(pydantic.BaseModel):
    width: Pixels
    height: Pixels


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class PaintInput(pydantic.BaseModel):
    colour: Colour
    finish: Literal["matt", "gloss"]


class Point(pydantic.BaseModel):
    x: Value
    y: Value


class NormsInput(pydantic.BaseModel):
    rows: list[list[Value]]
    points: list[Point]


class OptionalInput(pydantic.BaseModel):
    a: Optional[int] = None
    b: Optional[str] = "b"
    c: Optional[list[int]] = None


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()


class Labels(ls.LitAPI):
    def decode_request(self, request: LabelsInput) -> LabelsInput:
        return request

    def predict(self, request: LabelsInput) -> list[str]:
        return sorted(set(request.text.split()))[: request.top_k]


class Churn(ls.LitAPI):
    def decode_request(self, request: Customer) -> Customer:
        return request

    def predict(self, customer: Customer) -> Scored:
        return Scored(churn=min(1.0, customer.age / 100), city=customer.city)


class ImageSize(ls.LitAPI):
    def decode_request(self, request: UploadFile) -> Any:
        try:
            return Image.open(request.file)
        except UnidentifiedImageError as error:
            raise HTTPException(422, "not an image") from error

    def predict(self, image: Any) -> dict[str, int]:
        return {"width": image.width, "height": image.height}


class Picture(ls.LitAPI):
    def decode_request(self, request: Size) -> Size:
        return request

    def predict(self, size: Size) -> bytes:
        return png(size.width, size.height)

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="image/png")


class Words(ls.LitAPI):
    def decode_request(self, request: Text) -> str:
        return request.text

    def predict(self, text: str) -> Iterator[str]:
        yield from text.split()

    def encode_response(self, output: Iterator[str]) -> Any:
        for word in output:
            yield f"data: {json.dumps(word, ensure_ascii=False)}\n\n"


class Shout(ls.LitAPI):
    async def decode_request(self, request: Text) -> str:
        return request.text

    async def predict(self, text: str) -> str:
        return text.upper()

    async def encode_response(self, output: str) -> str:
        return output


class Lengths(ls.LitAPI):
    def decode_request(self, request: Text) -> str:
        return request.text

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, text: list[str]) -> list[int]:
        return [len(one) for one in text]

    def unbatch(self, output: list[int]) -> list[int]:
        return output


class Paint(ls.LitAPI):
    def decode_request(self, request: PaintInput) -> PaintInput:
        return request

    def predict(self, request: PaintInput) -> dict[str, str]:
        return {"paint": f"{request.finish} {request.colour.value}"}


class Norms(ls.LitAPI):
    def decode_request(self, request: NormsInput) -> NormsInput:
        return request

    def predict(self, request: NormsInput) -> dict[str, list[float]]:
        return {
            "rows": [sum(value * value for value in row) for row in request.rows],
            "points": [point.x + point.y for point in request.points],
        }


class Optionals(ls.LitAPI):
    def decode_request(self, request: OptionalInput) -> OptionalInput:
        return request

    def predict(self, request: OptionalInput) -> dict[str, Any]:
        return {"a": request.a, "b": request.b, "c": request.c}


class BodySize(ls.LitAPI):
    def decode_request(self, request: RawBody) -> bytes:
        return request

    def predict(self, data: bytes) -> dict[str, int]:
        return {"size": len(data)}


class Reverse(ls.LitAPI):
    def decode_request(self, request: RawBody) -> bytes:
        return request

    def predict(self, data: bytes) -> bytes:
        return data[::-1]

    def encode_response(self, output: bytes) -> Response:
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    server = ls.LitServer(
        [
            Labels(api_path="/labels"),
            Churn(api_path="/churn"),
            ImageSize(api_path="/image_size"),
            Picture(api_path="/picture"),
            Words(api_path="/words", stream=True),
            Shout(api_path="/shout", enable_async=True),
            Lengths(api_path="/lengths", max_batch_size=16, batch_timeout=0.001),
            Paint(api_path="/paint"),
            Norms(api_path="/norms"),
            Optionals(api_path="/optional"),
            BodySize(api_path="/size"),
            Reverse(api_path="/reverse"),
        ],
        accelerator="cpu",
    )
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
