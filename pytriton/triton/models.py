"""`BoundModel`: the arguments of one `bind`, validated before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytriton._protocol import env_variables
from pytriton.exceptions import (
    ModelNotFoundError,
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonValidationError,
)
from pytriton.triton.server import environment

if TYPE_CHECKING:
    from pytriton._control.connection import Report
    from pytriton.daemon import DaemonClient, Model
    from pytriton.model_config import ModelConfig, Tensor


@dataclass
class BoundModel:
    """A model with the arguments passed to `bind`, and its registration with the daemon."""

    name: str
    infer_func: Any
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    version: int
    config: ModelConfig | None
    strict: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: bool | Report | None = False
    served: Model | None = None
    registered_at: float = 0.0

    def check(self) -> None:
        """Validate all arguments that can be checked without a server.

        Raises:
            PyTritonValidationError, PyTritonBadParameterError: an argument is invalid
            TypeError: an option is unknown
        """
        from pytriton.declaration import validate_model_name
        from pytriton.model_config import to_triton_config

        validate_model_name(self.name)
        callables = list(self.infer_func) if self._is_sequence else [self.infer_func]
        if not callables or not all(map(callable, callables)):
            raise PyTritonValidationError(
                "inference_fn has to be either callable or sequence of callables, got "
                f"{self.infer_func!r} for model {self.name!r}."
            )
        if any(getattr(tensor, "optional", False) for tensor in self.outputs):
            raise PyTritonValidationError(
                f"Output tensors cannot be optional. Model {self.name!r} has an optional output."
            )
        to_triton_config(self.name, self.inputs, self.outputs, self.config, self.version)
        self._check_options()

    def _check_options(self) -> None:
        from pytriton.run_options import CallableOptions, check_names, names_of

        isolation = self.options.get("isolation")
        if isolation not in (None, "process", "thread"):
            raise PyTritonBadParameterError(
                f"isolation must be 'process' or 'thread', got {isolation!r}."
            )
        if "ephemeral" in self.options:
            raise PyTritonBadParameterError(
                "bind() does not accept ephemeral=: a bound model is served until this object is stopped. For a model "
                "that keeps running afterwards, use pytriton.daemon.connect().register(...)."
            )
        check_names("bind", self.options, [*names_of(CallableOptions), "trace_config"])

    def load(self, client: DaemonClient, *, replace: bool) -> None:
        """Register the model with a daemon for the lifetime of this process. Return when it is being served.

        Raises:
            RegistrationError: the model cannot be served; the registration was rolled back
            DaemonNotRunningError: the daemon exited during the call
        """
        options: dict[str, Any] = {
            name: value for name, value in self.options.items() if value is not None
        }
        effective = {**self._declared_options(), **options}
        if effective.get("isolation") != "thread":  # a thread shares this process's environment
            from pytriton._register.environment import select_variables

            # Nothing is persisted beyond the script, so variables with secrets may be forwarded, too.
            own = effective.get("python") is None and effective.get("requirements") is None
            everything = env_variables.usable_variables(environment(), own_interpreter=own)
            options["env"] = {**everything, **select_variables(effective.get("env"))}
        served = client.register(
            list(self.infer_func) if self._is_sequence else self.infer_func,
            self.name,
            self.inputs,
            self.outputs,
            self.config,
            strict=self.strict,
            model_version=self.version,
            replace=replace,
            ephemeral=True,
            progress=self.progress,
            **options,
        )
        self.registered_at = served.info().registered_at
        self.served = served

    def unload(self, client: DaemonClient) -> None:
        """Unregister the model from the daemon, unless it has been replaced by another registration.

        Raises:
            PyTritonDaemonError: unregistering failed
        """
        try:
            if client.model_info(self.name).registered_at == self.registered_at:
                client.unregister(self.name)
        except ModelNotFoundError:
            return  # unregistered by another process

    def _declared_options(self) -> Mapping[str, Any]:
        from pytriton.declaration import declaration_of

        declaration = declaration_of(self.infer_func[0] if self._is_sequence else self.infer_func)
        return declaration.options if declaration is not None else {}

    @property
    def _is_sequence(self) -> bool:
        return not callable(self.infer_func) and isinstance(self.infer_func, Sequence)


def reject_duplicate_name(model: BoundModel, others: Sequence[BoundModel]) -> None:
    """Raise PyTritonInvalidOperationError if another model has the same name, regardless of case."""
    for other in others:
        if other.name.lower() == model.name.lower():
            raise PyTritonInvalidOperationError(
                f"Cannot add model with the same name twice. {other.name!r} (version "
                f"{other.version}) is already bound. Bind with replace=True, which keeps it serving until the new "
                f"one is ready, call unbind({other.name!r}) first, or give {model.name!r} another name."
            )
