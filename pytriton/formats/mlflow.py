"""MLflow models, called through their `python_function` flavor, with the request bodies of MLflow's own scoring server."""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Optional, Union

import numpy as np
from msgspec import UNSET, Meta
from typing_extensions import NotRequired, TypedDict

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError
from pytriton.formats.loaded import FormatError
from pytriton.formats.tools import ToolModel, file_at
from pytriton.typed.signature import Parameter, Signature

#: MLflow's data types -> types of JSON values; bytes are base64 in both.
_TYPES: dict[str, Any] = {
    "boolean": bool,
    "integer": Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "datetime": datetime.datetime,
}
#: Names of a body's members that hold the model's input, in MLflow's protocol.
_RECORDS, _SPLIT, _INPUTS, _INSTANCES = (
    "dataframe_records",
    "dataframe_split",
    "inputs",
    "instances",
)
_DOC = """Predict with an MLflow model.

Send one of the members but `params`, as to MLflow's own server.

Args:
    dataframe_records: rows, each with its columns by name
    dataframe_split: rows as lists, and the names of their columns
    inputs: columns by name, or tensors
    instances: rows, or a tensor
    params: parameters of the model
"""


class Split(TypedDict):
    """A table as pandas writes it with `orient="split"`."""

    columns: list[str]
    data: list[list[Any]]
    index: NotRequired[list[Any]]


def open_model(location: str) -> ToolModel:
    """Read the signature of a model, which may also be a URI such as `models:/churn/3`.

    Raises:
        FormatError: it is not an MLflow model, or has no python_function flavor.
    """
    is_uri = re.match(r"[a-z0-9+]+:/", location) is not None
    if not is_uri and not (file_at(location, "MLflow") / "MLmodel").exists():
        raise FormatError(f"{location} is not an MLflow model: it has no file MLmodel")
    model = importlib.import_module("mlflow.models").Model.load(location)
    if "python_function" not in model.flavors:
        raise FormatError(
            f"{location} has no python_function flavor, which is needed for prediction"
        )
    declared = model.signature
    inputs = declared.inputs if declared is not None else None
    outputs = declared.outputs if declared is not None else None
    params = declared.params if declared is not None else None
    parameters = [*_inputs(inputs), *_params(params)]
    signature = Signature(
        name="predict",
        parameters=tuple(Parameter(name, kind, False, UNSET) for name, kind in parameters),
        result=TypedDict("Predictions", {"predictions": _output(outputs)}),  # type: ignore[operator]
        kind=Kind.FUNCTION,
        doc=_DOC,
    )
    names = [part for part in re.split(r"[/:]+", location) if part and not part.isdecimal()]
    return ToolModel(names[-1], signature, lambda: _load(location, inputs))


# ── the types of a signature ──────────────────────────────────────────────────────────────────────


def _inputs(schema: Any) -> list[tuple[str, Any]]:
    if schema is None:
        rows = list[Any]
        return [(_RECORDS, rows), (_SPLIT, Split), (_INPUTS, Any), (_INSTANCES, rows)]
    if schema.is_tensor_spec():
        tensors = _tensors("Tensors", schema)
        return [(_INPUTS, tensors), *([] if schema.has_input_names() else [(_INSTANCES, tensors)])]
    row = _row("Row", schema)
    if not schema.has_input_names():
        return [(_INPUTS, list[row]), (_INSTANCES, list[row])]  # type: ignore[valid-type]
    columns = _named(
        "Columns",
        {one.name: (list[_type(one.to_dict(), "Column")], True) for one in schema},  # type: ignore[misc]
    )
    return [
        (_RECORDS, list[row]),  # type: ignore[valid-type]
        (_SPLIT, Split),
        (_INPUTS, Union[list[row], columns]),  # type: ignore[valid-type]
        (_INSTANCES, list[row]),  # type: ignore[valid-type]
    ]


def _params(schema: Any) -> list[tuple[str, Any]]:
    if schema is None or not schema.params:
        return [("params", dict[str, Any])]
    kinds = {}
    for one in schema.params:
        kind = _type({**one.to_dict(), "required": True}, "Param")
        kinds[one.name] = (kind if one.shape is None else list[kind], False)  # type: ignore[valid-type]
    return [("params", _named("Params", kinds))]


def _output(schema: Any) -> Any:
    if schema is None:
        return Any
    if schema.is_tensor_spec():
        return _tensors("Outputs", schema)
    return list[_row("Prediction", schema)]  # type: ignore[misc]


def _row(name: str, schema: Any) -> Any:
    if not schema.has_input_names():
        return _type(schema.inputs[0].to_dict(), name)
    return _named(name, {one.name: (_type(one.to_dict(), name), one.required) for one in schema})


def _tensors(name: str, schema: Any) -> Any:
    if not schema.has_input_names():
        return _tensor(schema.inputs[0])
    return _named(name, {one.name: (_tensor(one), one.required) for one in schema})


def _tensor(spec: Any) -> Any:
    """Return the type of nested lists that have a tensor's shape."""
    kind = _element(spec.type)
    for size in reversed(spec.shape):
        kind = list[kind]  # type: ignore[valid-type]
        kind = kind if size < 0 else Annotated[kind, Meta(min_length=size, max_length=size)]
    return kind


def _element(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        largest = bounds.max if bounds.max < 2**63 else None
        return Annotated[int, Meta(ge=int(bounds.min), le=largest)]
    return {"b": bool, "f": float, "U": str, "S": bytes}.get(dtype.kind, Any)


def _type(spec: Mapping[str, Any], owner: str) -> Any:
    """Return the type of a column, array element or property.

    Args:
        spec: as in MLmodel
        owner: name of the type that it belongs to: those of one model must differ
    """
    name = str(spec.get("type", ""))
    owner = f"{owner}_{spec['name']}" if spec.get("name") else owner
    kind: Any = _TYPES.get(name, Any)
    if name == "array":
        kind = list[_type({**spec["items"], "required": True}, owner)]  # type: ignore[misc]
    elif name == "map":
        kind = dict[str, _type({**spec["values"], "required": True}, owner)]  # type: ignore[misc]
    elif name == "object":
        members = {
            key: (_type({**one, "name": key}, owner), one.get("required", True))
            for key, one in spec["properties"].items()
        }
        kind = _named(owner, members)
    return kind if spec.get("required", True) else Optional[kind]


def _named(name: str, members: Mapping[str, tuple[Any, bool]]) -> Any:
    """Return the type of an object: name of a member -> its type, and whether it is required."""
    kinds = {key: kind if need else NotRequired[kind] for key, (kind, need) in members.items()}
    return TypedDict(name, kinds)  # type: ignore[operator]


# ── in the worker ─────────────────────────────────────────────────────────────────────────────────


def _load(location: str, schema: Any) -> Callable[..., Any]:
    loaded = importlib.import_module("mlflow.pyfunc").load_model(location)
    failure = importlib.import_module("mlflow.exceptions").MlflowException

    def predict(params: Any = None, **members: Any) -> Any:
        if len(members) != 1:
            raise HTTPError(422, f"Send the input as exactly one member, got {len(members)}")
        ((form, value),) = members.items()
        try:
            predicted = loaded.predict(_data(form, value, schema), params=params)
        except failure as error:
            if error.get_http_status_code() < 500:  # it does not fit the model's signature
                raise HTTPError(422, error.message) from error
            raise
        return {"predictions": _plain(predicted)}

    return predict


def _data(form: str, value: Any, schema: Any) -> Any:
    """Return the argument for `predict`: a DataFrame, an array, or arrays by name."""
    if (schema is None or schema.is_tensor_spec()) and form not in (_RECORDS, _SPLIT):
        specs = {} if schema is None else {one.name: one.type for one in schema}
        if not isinstance(value, dict):
            return np.array(value, specs.get(None))
        return {name: np.array(one, specs.get(name)) for name, one in value.items()}
    pandas = importlib.import_module("pandas")
    if form == _SPLIT:
        try:
            frame = pandas.DataFrame(value["data"], value.get("index"), value["columns"])
        except ValueError as error:
            raise HTTPError(422, f"{_SPLIT}: {error}") from error
    else:
        frame = pandas.DataFrame(value)
    for one in schema or ():
        _cast(frame, one)
    return frame


def _cast(frame: Any, column: Any) -> None:
    """Convert a column to the type in the signature, because JSON has only one type for numbers."""
    name = 0 if column.name is None else column.name
    kind = getattr(column.type, "name", "")
    if name not in frame or frame[name].isna().any():
        return  # MLflow reports it, if it is required
    if kind in ("integer", "long", "float", "double", "boolean", "datetime"):
        try:
            frame[name] = frame[name].astype(column.type.to_pandas())
        except (TypeError, ValueError) as error:
            raise HTTPError(422, f"Column {name!r}: {error}") from error


def _without_missing(predicted: Any) -> Any:
    """Return a frame or a series with None for its missing values, which pandas represents as NaN."""
    return predicted.astype(object).where(predicted.notna(), None)


def _plain(predicted: Any) -> Any:
    """Convert predictions to values that JSON can represent."""
    if isinstance(predicted, dict):
        return {name: _plain(one) for name, one in predicted.items()}
    if hasattr(predicted, "to_frame"):  # pandas.Series
        return [_plain(one) for one in _without_missing(predicted).tolist()]
    if hasattr(predicted, "to_dict") and hasattr(predicted, "columns"):  # pandas.DataFrame
        rows = _without_missing(predicted).to_dict(orient="records")
        return [{str(name): _plain(one) for name, one in row.items()} for row in rows]
    if hasattr(predicted, "toarray"):  # scipy's sparse arrays
        return predicted.toarray()
    if hasattr(predicted, "to_pydatetime"):  # pandas.Timestamp
        return predicted.to_pydatetime()
    return predicted
