"""The parameters and the result of a typed function, read from its annotations."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from pytriton._callables import call_signature, called_function, name_of
from pytriton.decorators import wrapping
from pytriton.decorators.wrapping import Kind, kind_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.typed.markers import Batching, UploadFile, batching_of

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations  # novm

__all__ = ["Parameter", "Signature", "is_typed", "signature_of"]

#: What a generator may be annotated to return; the first argument is the type of its items.
_GENERATORS = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)
#: What the `type` statement creates.
_ALIAS_TYPES: tuple[type, ...] = ()
if sys.version_info >= (3, 12):
    _ALIAS_TYPES = (typing.TypeAliasType,)  # novm


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a typed function.

    Args:
        name: name in the signature, and in the request body
        type: its annotation; for a batchable function, the annotation of one request's item
        required: whether it has no default
        default: its default, if any
        positional: whether it can only be passed by position
    """

    name: str
    type: Any
    required: bool
    default: Any = None
    positional: bool = False


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters and the result of a typed function.

    Args:
        name: the function's name, for error messages
        parameters: its parameters, in order
        result: annotation of one request's result, or of one item of a stream. `Any` without annotation
        kind: how it is called
        batching: set by `@batchable`
        doc: its docstring
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Any
    kind: Kind
    batching: Batching | None = None
    doc: str = ""

    def __getstate__(self) -> dict[str, Any]:
        # A class of a script is pickled without the script's imports, so the worker could not resolve its annotations.
        types = (self.result, *(one.type for one in self.parameters))
        return {**vars(self), "resolved": _resolved_annotations(types)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for kind, resolved in state.pop("resolved"):
            kind.__annotations__ = resolved
        vars(self).update(state)

    @property
    def streams(self) -> bool:
        """Whether the response to a request is a stream of items."""
        return self.kind in (Kind.GENERATOR, Kind.ASYNC_GENERATOR)

    @property
    def whole(self) -> Parameter | None:
        """The parameter that receives the whole JSON body: the only parameter, if its type is a JSON object."""
        if len(self.parameters) == 1 and _is_object(self.parameters[0].type):
            return self.parameters[0]
        return None

    @property
    def raw(self) -> Parameter | None:
        """The parameter that receives a non-JSON body: the only parameter, if its type is bytes, a file or an image."""
        if len(self.parameters) == 1 and is_binary(self.parameters[0].type):
            return self.parameters[0]
        return None


def is_typed(target: Any) -> bool:
    """Return whether a callable without declared tensors is a typed function.

    All its parameters must be annotated, or its result if it has no parameters.
    """
    function = _called(target)
    if getattr(function, "__globals__", None) is vars(wrapping):
        return False  # wrapped by one of our decorators, which are for tensors
    try:
        parameters = _parameters(target)
    except (TypeError, ValueError):  # e.g. of a builtin
        return False
    annotated = [one.annotation is not one.empty for one in parameters]
    if not annotated:
        return call_signature(function).return_annotation is not inspect.Signature.empty
    return all(annotated)


def signature_of(target: Any) -> Signature:
    """Return the signature of a typed function, method, callable object, or class of callable objects.

    Raises:
        PyTritonValidationError: a parameter is *args or **kwargs, or has no annotation or one that cannot be resolved
    """
    function = _called(target)
    name, plain = name_of(target), inspect.unwrap(called_function(function))
    try:
        hints = {
            parameter: expand(hint)
            for parameter, hint in typing.get_type_hints(plain, include_extras=True).items()
        }
    except Exception as error:
        raise PyTritonValidationError(
            f"The annotations of {name} cannot be resolved: {error}. Define or import the types that they name in the "
            "module of the function, outside `if TYPE_CHECKING:`."
        ) from error
    batching = batching_of(target)
    parameters = [_parameter(name, one, hints, batching) for one in _parameters(target)]
    result = hints.get("return", Any)
    kind = kind_of(function)
    if kind in (Kind.GENERATOR, Kind.ASYNC_GENERATOR):
        if batching is not None:
            raise PyTritonValidationError(
                f"{name} is a generator, so each request has its own stream and cannot be batched. Leave out @batchable."
            )
        result = (get_args(result) or (Any,))[0] if get_origin(result) in _GENERATORS else Any
    if batching is not None:
        result = _item_of_batch(name, "what it returns", result)
    return Signature(
        name=name,
        parameters=tuple(parameters),
        result=Any if result is None and "return" not in hints else result,
        kind=kind,
        batching=batching,
        doc=inspect.getdoc(target if inspect.isclass(target) else plain) or "",
    )


def is_binary(annotation: Any) -> bool:
    """Return whether values of a type are sent unencoded: bytes, a file, an image."""
    bare = strip(annotation)
    return bare in (bytes, bytearray, memoryview, UploadFile) or is_image(bare)


def is_image(annotation: Any) -> bool:
    """Return whether a type is `PIL.Image.Image`, without importing Pillow."""
    bare = strip(annotation)
    return is_class(bare) and (bare.__module__, bare.__name__) == ("PIL.Image", "Image")


def expand(annotation: Any) -> Any:
    """Return a type in which each alias (`type Words = list[str]`) is replaced by the type that it stands for.

    Since numpy 2.5, `numpy.typing.NDArray` is such an alias. An alias within itself remains.
    """
    return _expand(annotation, ())


def _expand(annotation: Any, outer: tuple[Any, ...]) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    alias = origin or annotation
    if isinstance(alias, _ALIAS_TYPES):
        return annotation if alias in outer else _expand(_value_of(annotation), (*outer, alias))
    expanded = tuple(_expand(one, outer) for one in arguments)
    if all(new is old for new, old in zip(expanded, arguments)):
        return annotation
    if origin is Annotated:
        return Annotated[expanded]
    if union_members(annotation) == arguments:
        return typing.Union[expanded]
    return annotation.copy_with(expanded) if hasattr(annotation, "copy_with") else origin[expanded]


def _value_of(alias: Any) -> Any:
    """Return the type that an alias stands for. If the alias is generic, its arguments are filled in."""
    generic = get_origin(alias) or alias
    value = generic.__value__
    chosen = dict(zip(generic.__type_params__, get_args(alias)))
    parameters = getattr(value, "__parameters__", ())
    return (
        value[tuple(chosen.get(one, one) for one in parameters)] if chosen and parameters else value
    )


def is_class(annotation: Any) -> bool:
    """Return whether an annotation is a class. Below Python 3.11, `list[int]` is an instance of `type`, too."""
    return isinstance(annotation, type) and get_origin(annotation) is None


def strip(annotation: Any) -> Any:
    """Return a type without `Annotated`, and without `None` if it is optional."""
    annotation = expand(annotation)
    if get_origin(annotation) is Annotated:
        return strip(get_args(annotation)[0])
    members = [one for one in union_members(annotation) if one is not type(None)]
    return strip(members[0]) if len(members) == 1 and members[0] is not annotation else annotation


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; for any other type, the type itself."""
    origin = get_origin(annotation)
    if origin is typing.Union or getattr(origin, "__name__", "") == "UnionType":
        return get_args(annotation)
    return (annotation,)


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield everything that a type consists of: its arguments, its markers, and the fields of its classes."""
    return _parts_of(annotation, {})


def _parts_of(annotation: Any, seen: dict[int, Any]) -> Iterator[Any]:
    alias = get_origin(annotation) or annotation
    is_alias = isinstance(alias, _ALIAS_TYPES)
    key = alias if is_alias else annotation
    if id(key) in seen:
        return
    seen[id(key)] = key  # so that no other object gets its id
    if is_alias:
        yield from _parts_of(_value_of(annotation), seen)
        return
    yield annotation
    inner = [*get_args(annotation)]
    kind = get_origin(annotation) or annotation
    if kind is not annotation:  # a generic dataclass, or list[int]
        inner.append(kind)
    elif isinstance(kind, type) and not hasattr(kind, "model_fields"):
        inner += [one for base in kind.__mro__ for one in _own_annotations(base).values()]
    for one in inner:
        yield from _parts_of(one, seen)


def _own_annotations(kind: type) -> dict[str, Any]:
    """Return the resolved annotations in the body of a class; none if one of them cannot be resolved."""
    own = _declared_annotations(kind)
    if not _has_text(own):
        return own
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (
        Exception
    ):  # a name that only type checkers import; creating a decoder for the type reports the reason
        return {}
    return {name: hints[name] for name in own}


def _declared_annotations(kind: type) -> dict[str, Any]:
    """Return the annotations in a class body. An unresolved annotation is a string or a forward reference."""
    if sys.version_info >= (3, 14):  # a class evaluates them when they are first asked for
        return get_annotations(kind, format=Format.FORWARDREF)
    own = vars(kind).get("__annotations__")
    return own if isinstance(own, dict) else {}


def _has_text(annotations: dict[str, Any]) -> bool:
    return any(map(_is_text, annotations.values()))


def _is_text(annotation: Any) -> bool:
    """Return whether an annotation or one of its arguments is a string, as in `Optional["Tree"]`."""
    if isinstance(annotation, (str, typing.ForwardRef)):
        return True
    return get_origin(annotation) is not Literal and any(map(_is_text, get_args(annotation)))


def _resolved_annotations(types: Iterable[Any]) -> list[tuple[type, dict[str, Any]]]:
    """Find the classes with string annotations in these types. Return each class with its resolved annotations.

    Pydantic's models are left out: they have resolved theirs.
    """
    found = {
        base: _own_annotations(base)
        for annotation in types
        for kind in parts_of(annotation)
        if is_class(kind) and not hasattr(kind, "model_fields")
        for base in kind.__mro__
        if _has_text(_declared_annotations(base))
    }
    return [(kind, annotations) for kind, annotations in found.items() if annotations]


def _parameters(target: Any) -> list[inspect.Parameter]:
    """Return the parameters that a caller passes to a callable or, if it is a class, to the objects of the class."""
    parameters = [*call_signature(_called(target)).parameters.values()]
    if inspect.isclass(target):
        call = inspect.getattr_static(target, "__call__", None)
        return parameters if isinstance(call, staticmethod) else parameters[1:]
    return parameters


def _parameter(
    name: str, one: inspect.Parameter, hints: dict[str, Any], batching: Batching | None
) -> Parameter:
    if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
        raise PyTritonValidationError(
            f"{name} takes {one}: clients cannot know which fields to send. Name each parameter. If {name} is the wrapper inside a "
            "decorator, apply functools.wraps to it."
        )
    if one.name not in hints:
        raise PyTritonValidationError(
            f"Parameter {one.name!r} of {name} has no annotation. Add one, such as {one.name}: str; or pass inputs= and "
            "outputs= to serve tensors."
        )
    annotation = hints[one.name]
    if batching is not None:
        annotation = _item_of_batch(name, f"parameter {one.name!r}", annotation)
    required = one.default is one.empty
    return Parameter(
        one.name,
        annotation,
        required,
        None if required else one.default,
        one.kind is one.POSITIONAL_ONLY,
    )


def _item_of_batch(name: str, what: str, annotation: Any) -> Any:
    bare = strip(annotation)
    if bare is Any:
        return Any
    if get_origin(bare) in (list, Sequence) and get_args(bare):
        return get_args(bare)[0]
    raise PyTritonValidationError(
        f"{name} is decorated with @batchable: {what} must be annotated as a list with one item for each request, such "
        f"as list[str], got {annotation!r}."
    )


def _is_object(annotation: Any) -> bool:
    bare = annotation
    while get_origin(bare) is Annotated:
        bare = get_args(bare)[0]
    origin = get_origin(bare) or bare
    if not isinstance(origin, type):
        return False
    return (
        dataclasses.is_dataclass(origin)
        or issubclass(origin, (msgspec.Struct, dict))  # a TypedDict is a dict
        or hasattr(origin, "model_validate_json")
    )


def _called(target: Any) -> Callable[..., Any]:
    """Return the function, method or partial that a call to `target` runs; for a class, the `__call__` of its objects."""
    if inspect.isclass(target):
        return typing.cast("Callable[..., Any]", called_function(target))
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return typing.cast("Callable[..., Any]", target)
    return typing.cast("Callable[..., Any]", target.__call__)
