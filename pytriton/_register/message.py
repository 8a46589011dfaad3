"""Builds the registration message from the arguments of `register` and the callable's declaration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pytriton._protocol import messages, trace_config
from pytriton._protocol.arguments import with_article
from pytriton._register.environment import (
    WorkerModules,
    select_interpreter,
    warn_of_missing,
    worker_environment,
)
from pytriton._register.pickling import pack_callable
from pytriton.autoscale import autoscale_of
from pytriton.declaration import (
    Declaration,
    declaration_of,
    default_model_name,
    validate_model_name,
)
from pytriton.decorators.checking import factory_problem, signature_problem
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, ModelWarmup, Tensor, WarmupInput, to_triton_config
from pytriton.model_config.dtypes import to_triton_datatype
from pytriton.openai.card import card_of
from pytriton.run_options import (
    OPTIONS,
    RegisterOptions,
    check_names,
    count_instances,
    default_concurrency,
    default_lanes,
    device_list,
    merge_options,
    spec_fields,
)

if TYPE_CHECKING:
    from pytriton.openai.model import OpenAIModel

__all__ = ["RegistrationPlan", "Target", "plan"]

Target = Callable[..., Any]


class RegistrationPlan(NamedTuple):
    """A validated registration that has not been sent.

    Attributes:
        message: the message for the daemon
        targets: the callables to serve: one for all instances, or one per instance
        check: the function that checks the loaded callable, as passed to `register`
        own_interpreter: whether the workers run the same interpreter as this process
    """

    message: messages.Register
    targets: list[Any]
    check: Callable[[Any], Any] | None
    own_interpreter: bool

    def payloads(self) -> list[bytes]:
        """Pickle the callables and return one payload for each; payloads for threads of this process are empty.

        Raises:
            PicklingError: a callable cannot be pickled
        """
        spec = self.message.spec
        if spec.isolation == "thread":
            return [b""] * len(self.targets)
        checks = [] if self.check is None else [self.check]
        warn_of_missing(spec.name, [*self.targets, *checks], spec.world.stayed)
        with closing(WorkerModules(spec.world, own_interpreter=self.own_interpreter)) as imports:
            return [
                *(pack_callable(one, imports, spec.name) for one in self.targets),
                *(pack_callable(one, imports, spec.name, is_check=True) for one in checks),
            ]


def plan(
    infer_fn: Target | Sequence[Target],
    model_name: str | None,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    config: ModelConfig | None,
    given: Mapping[str, Any],
) -> RegistrationPlan:
    """Validate the arguments of `register` and build the message.

    Args:
        infer_fn: one callable for all instances, or a list with one callable per instance
        model_name: name of the model; default: the declared name, or the callable's own
        inputs: the model's inputs; default: the declared ones
        outputs: the model's outputs; default: the declared ones
        config: the model's configuration; default: the declared one, or ``ModelConfig()``
        given: values of `RegisterOptions`; options that are None or missing take their declared values or defaults

    Raises:
        TypeError: an option does not exist
        PyTritonValidationError: an argument is missing or invalid
        PyTritonBadParameterError: a value in `config` is invalid
    """
    check_names("register", given, OPTIONS)
    several = isinstance(infer_fn, Sequence) and not callable(infer_fn)
    several = several and not isinstance(infer_fn, (str, bytes))
    targets: list[Any] = [*infer_fn] if several else [infer_fn]  # type: ignore[misc]
    per_instance = len(targets) if several else None
    declaration = declaration_of(targets[0]) if targets else None
    options = merge_options(declaration, given, per_instance)
    _check_callables(targets, factory=bool(options["factory"]))
    name = model_name
    if name is None:
        name = declaration.name if declaration else default_model_name(targets[0])
    config = config if config is not None else declaration.config if declaration else None
    web = None
    if options["openai"] is not None:
        model = _behind_openai(targets, config, options, name, [*(inputs or ()), *(outputs or ())])
        targets, inputs, outputs, config = model[:4]
    elif not _has_tensors(inputs, outputs, declaration) and _are_typed(targets, options):
        targets, inputs, outputs, config, web = _behind_route(targets, config, options, name)
    else:
        if options["route"] is not None:
            raise PyTritonValidationError(
                f"Model {name!r}: route= works only for typed functions. Annotate each parameter, and leave out inputs and outputs."
            )
        inputs = _tensors("inputs", inputs, declaration.inputs if declaration else None, name)
        outputs = _tensors("outputs", outputs, declaration.outputs if declaration else None, name)
        validate_model_name(name)
    devices = device_list(options["devices"])
    version = cast(int, options["model_version"])  # it has a default
    document = to_triton_config(name, inputs, outputs, config, version)
    python = select_interpreter(options["python"], options["requirements"])
    argv = [str(word) for word in sys.argv]
    if not options["factory"]:
        _check_fit(targets, document, name)
    fields = spec_fields(options)
    fields["on_error"] = options["on_error"] or options["on_crash"]
    if options["isolation"] == "thread":
        world = messages.WorkerEnvironment(
            sys.executable or "",
            env=trace_config.environment(options["trace_config"] or ()),
            argv=[messages.sendable(word) for word in argv],
        )
        # The daemon cannot retry a batch of this process, which also calls the check itself.
        fields.update(on_crash="fail", check=False)
    else:
        world = worker_environment(python, options, argv)
    fields.update(
        name=name,
        version=version,
        config=document,
        world=world,
        instances=count_instances(options["instances"], devices, per_instance),
        devices=devices,
        autoscale=autoscale_of(options["instances"]) if options["instances"] is not None else None,
        text_inputs=[
            entry["name"]
            for entry, tensor in zip(document["input"], inputs)
            if tensor.dtype is np.str_ or tensor.dtype is str
        ],
        max_inflight_batches=options["max_inflight_batches"] or default_lanes(document),
        max_concurrency=options["max_concurrency"]
        or default_concurrency(document, options["max_inflight_batches"]),
        warmups=_warmups(config, batching=document["max_batch_size"] > 0),
        web=web,
    )
    message = messages.Register(
        messages.ModelSpec(**fields), bool(options["replace"]), bool(options["ephemeral"])
    )
    _check_sendable(message)
    return RegistrationPlan(message, targets, options["check"], own_interpreter=python is None)


def _check_fit(targets: Sequence[Any], document: Mapping[str, Any], name: str) -> None:
    """Raise if a callable's signature does not accept the inputs. Classes are skipped: the worker checks their instances."""
    inputs = [one["name"] for one in document["input"]]
    for target in targets:
        why = None if inspect.isclass(target) else signature_problem(target, inputs)
        if why is not None:
            raise PyTritonValidationError(f"Model {name!r}: {why}")


def _behind_openai(
    targets: list[Any],
    config: ModelConfig | None,
    options: RegisterOptions,
    name: str,
    tensors: list[Tensor],
) -> OpenAIModel:
    """Wrap callables for the OpenAI API, set the options that the wrapper requires, and return the model to register."""
    from pytriton.openai.model import make_model

    if tensors:
        raise PyTritonValidationError(
            f"Model {name!r}: with openai=, the callable receives requests of the OpenAI API: omit inputs and outputs."
        )
    card = card_of(options["openai"])
    try:
        validate_model_name(name)
    except PyTritonValidationError as error:
        raise PyTritonValidationError(
            f"{error}. To let clients of the OpenAI API use this name, choose a valid model name and pass "
            f"openai=ModelCard({card.serves!r}, aliases=[{name!r}])."
        ) from None
    for target in [] if options["factory"] else targets:
        if not inspect.isclass(target) and signature_problem(target, ()) is not None:
            raise PyTritonValidationError(
                f"Model {name!r}: {target!r} cannot be called with a request of the OpenAI API, or with a list of "
                "texts, as its only argument. If it is a function that creates the callable, pass factory=True."
            )
    model = make_model(targets, card, config, factory=bool(options["factory"]))
    options["factory"] = model.factory
    options["max_inflight_batches"] = options["max_inflight_batches"] or model.lanes
    return model


def _has_tensors(
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    declaration: Declaration | None,
) -> bool:
    declared = declaration is not None and bool(declaration.inputs or declaration.outputs)
    return declared or inputs is not None or outputs is not None


def _are_typed(targets: Sequence[Any], options: RegisterOptions) -> bool:
    """Return whether callables without tensors are typed functions, or factories of them."""
    from pytriton.typed.signature import is_typed

    return bool(options["factory"]) or all(map(is_typed, targets))


def _behind_route(
    targets: list[Any], config: ModelConfig | None, options: RegisterOptions, name: str
) -> tuple[list[Any], list[Tensor], list[Tensor], ModelConfig, messages.WebRoute]:
    """Return the registration of typed functions, with the options that they require."""
    from pytriton.typed.model import make_model

    validate_model_name(name)
    model = make_model(targets, config, factory=bool(options["factory"]))
    options["factory"] = model.factory
    return (
        model.targets,
        model.inputs,
        model.outputs,
        model.config,
        model.route(options["route"] or f"/{name}"),
    )


def _tensors(
    what: str, given: Sequence[Tensor] | None, declared: Sequence[Tensor] | None, model_name: str
) -> Sequence[Tensor]:
    tensors = given if given is not None else declared
    if tensors is None:
        raise PyTritonValidationError(
            f"Model {model_name!r} has no {what}. Pass {what}=[Tensor(name=..., dtype=..., "
            "shape=...)], or decorate the callable with @pytriton.declare(inputs=[...], "
            "outputs=[...])."
        )
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _check_callables(targets: Sequence[Any], *, factory: bool) -> None:
    if not targets:
        raise PyTritonValidationError("infer_fn is an empty list: there is nothing to serve.")
    for target in targets:
        if callable(target):
            why = factory_problem(target) if factory else None
            if why is not None:
                raise PyTritonValidationError(f"{why}.")
            continue
        if factory:
            wanted = (
                "With factory=True, infer_fn must be a class or function that creates the callable"
            )
        else:
            wanted = "infer_fn must be a callable or a list of callables"
        hint = (
            " 'module:attribute' is for the command line; import it here."
            if isinstance(target, str)
            else ""
        )
        raise PyTritonValidationError(f"{wanted}, got {with_article(type(target).__name__)}.{hint}")


def _warmups(config: ModelConfig | None, *, batching: bool) -> list[messages.Warmup]:
    """Return the warm-up requests of a model. Input files are read now; workers generate random and zero data.

    Args:
        config: the model's configuration
        batching: whether requests have a batch axis

    Raises:
        PyTritonBadParameterError: an input file cannot be read, or its array has the wrong type or shape
    """
    warmups = (config.model_warmup if config is not None else None) or ()
    return [
        messages.Warmup(
            warmup.name,
            warmup.batch_size,
            warmup.count,
            [
                _warmup_tensor(name, source, warmup, batching)
                for name, source in warmup.inputs.items()
            ],
        )
        for warmup in warmups
    ]


def _warmup_tensor(
    name: str, source: WarmupInput, warmup: ModelWarmup, batching: bool
) -> messages.WarmupTensor:
    datatype, shape = to_triton_datatype(source.dtype), list(source.shape)
    if source.input_data_file is None:
        return messages.WarmupTensor(
            name, datatype, shape, "zero" if source.zero_data else "random"
        )
    source.generate(warmup.batch_size if batching else 0)  # raises if the data does not fit
    return messages.WarmupTensor(name, datatype, shape, "file", source.file_content())


def _check_sendable(message: messages.Register) -> None:
    try:
        messages.encode(message)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise PyTritonValidationError(
            f"Model {message.spec.name!r} has a value that cannot be sent to the daemon: {error}. "
            "Use plain Python numbers, strings, lists and dicts in ModelConfig."
        ) from error
