"""The arguments of `bind`: one model, validated before anything is started."""

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
    """A model as it was bound, and its registration with the daemon."""

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
        """Validate everything that can be checked without a server.

        Raises:
            PyTritonValidationError, PyTritonBadParameterError: an argument is invalid
            TypeError: an unknown option
        """
        from pytriton.declaration import validate_model_name
        from pytriton.model_config import to_triton_config

        validate_model_name(self.name)
        callables = list(self.infer_func) if self._several else [self.infer_func]
        if not callables or not all(map(callable, callables)):
            raise PyTritonValidationError(
                "inference_fn has to be either callable or sequence of callables, got "
                f"{self.infer_func!r} for model {self.name!r}."
            )
        if any(getattr(tensor, "optional", False) for tensor in self.outputs):
            raise PyTritonValidationError(
                f"Output tensors cannot be optional. Model {self.name!r} has such."
            )
        to_triton_config(self.name, self.inputs, self.outputs, self.config, self.version)
        self._check_options()

    def _check_options(self) -> None:
        from pytriton.run_options import CallableOptions, check_names, names_of

        isolation = self.options.get("isolation")
        if isolation not in (None, "process", "thread"):
            raise PyTritonBadParameterError(
                f"isolation has to be 'process' or 'thread', got {isolation!r}."
            )
        if "ephemeral" in self.options:
            raise PyTritonBadParameterError(
                "bind() does not accept ephemeral=: a bound model is served until this object is stopped. For a model "
                "that outlives it, use pytriton.daemon.connect().register(...)."
            )
        check_names("bind", self.options, [*names_of(CallableOptions), "trace_config"])

    def load(self, client: DaemonClient, *, replace: bool) -> None:
        """Register the model with a daemon until this process ends. Return when it serves.

        Raises:
            RegistrationError: the model cannot be served; the attempt was undone completely
            DaemonNotRunningError: the daemon exited during the call
        """
        options: dict[str, Any] = {
            name: value for name, value in self.options.items() if value is not None
        }
        said = {**self._declared(), **options}
        if said.get("isolation") != "thread":  # a thread has them anyway
            from pytriton._register.environment import select_variables

            # Nothing of it persists after the script, so secret variables may be forwarded, too.
            own = said.get("python") is None and said.get("requirements") is None
            everything = env_variables.usable_variables(environment(), own_interpreter=own)
            options["env"] = {**everything, **select_variables(said.get("env"))}
        served = client.register(
            list(self.infer_func) if self._several else self.infer_func,
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
        """Unregister the model from the daemon, unless another process has replaced it.

        Raises:
            PyTritonDaemonError: unregistering failed
        """
        try:
            if client.model_info(self.name).registered_at == self.registered_at:
                client.unregister(self.name)
        except ModelNotFoundError:
            return  # already unregistered by another process

    def _declared(self) -> Mapping[str, Any]:
        from pytriton.declaration import declaration_of

        declaration = declaration_of(self.infer_func[0] if self._several else self.infer_func)
        return declaration.options if declaration is not None else {}

    @property
    def _several(self) -> bool:
        return not callable(self.infer_func) and isinstance(self.infer_func, Sequence)


def refuse_twin(model: BoundModel, others: Sequence[BoundModel]) -> None:
    """Raise PyTritonInvalidOperationError if another model has the same name, ignoring case."""
    for other in others:
        if other.name.lower() == model.name.lower():
            raise PyTritonInvalidOperationError(
                f"Cannot add model with the same name twice. {other.name!r} (version "
                f"{other.version}) is bound already: bind it with replace=True, which serves on until the new one "
                f"is ready, call unbind({other.name!r}) first, or give {model.name!r} another name."
            )
