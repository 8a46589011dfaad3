"""Public exceptions of this package, except those of the inference clients.

Exceptions named ``PyTriton...`` have the same meaning and constructor as in PyTriton. The others are specific to the
daemon. All of them can be pickled with their attributes, because they may be raised in one process and displayed in
another.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CallError",
    "CallTimeoutError",
    "CanaryError",
    "DaemonNotRunningError",
    "DaemonStartError",
    "FleetError",
    "HTTPError",
    "ModelExistsError",
    "ModelNotFoundError",
    "PicklingError",
    "PyTritonBadParameterError",
    "PyTritonDaemonError",
    "PyTritonError",
    "PyTritonInvalidOperationError",
    "PyTritonModelConfigError",
    "PyTritonRuntimeError",
    "PyTritonUnrecoverableError",
    "PyTritonValidationError",
    "RegistrationError",
]


class PyTritonError(Exception):
    """Base class of all exceptions of this package.

    Args:
        message: what was wrong, where, and what to do
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class PyTritonValidationError(PyTritonError):
    """A value passed by the user is invalid."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible in the current state."""


class PyTritonBadParameterError(PyTritonError):
    """A parameter of a model, tensor, batcher or decorator has an invalid value."""


class PyTritonModelConfigError(PyTritonError):
    """A Triton model configuration cannot be read."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raise this *in an inference callable* if the model cannot serve any more requests.

    The requests of the current batch fail with the error. Then the whole server stops, so that its supervisor
    (systemd, Kubernetes) restarts everything.
    """


class PyTritonRuntimeError(PyTritonError):
    """An error occurred while a request was processed."""


class HTTPError(PyTritonRuntimeError):
    """Raise this *in a callable* to answer the request with an HTTP status of your choice.

    The request counts as failed, and no traceback is logged. Clients of Triton's protocols get the closest error code.

    Args:
        status: from 400 to 599
        detail: what went wrong, for the client

    Example:
        >>> raise HTTPError(404, "no such customer")
        Traceback (most recent call last):
        pytriton.exceptions.HTTPError: no such customer
    """

    def __init__(self, status: int, detail: str = "") -> None:
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise PyTritonValidationError(f"status must be from 400 to 599, got {status!r}.")
        super().__init__(detail)
        self.status = status

    def __reduce__(self) -> tuple[type[HTTPError], tuple[int, str]]:
        return type(self), (self.status, self.message)


class CallError(PyTritonRuntimeError):
    """A call to another model, made with `pytriton.infer` or a related function, failed.

    Args:
        message: what failed and what to do
        model_name: name of the called model
        code: name of Triton's error code, such as ``"NOT_FOUND"``, ``"INVALID_ARG"``, ``"UNAVAILABLE"`` or
            ``"INTERNAL"``. Errors raised by the called model have the code ``"INTERNAL"``, too
    """

    def __init__(
        self, message: str = "", *, model_name: str | None = None, code: str = "INTERNAL"
    ) -> None:
        super().__init__(message)
        self.model_name = model_name
        self.code = code


class CallTimeoutError(CallError, TimeoutError):
    """A called model did not respond within `timeout_s`."""


class PyTritonDaemonError(PyTritonError):
    """Base class of errors in communicating with a daemon."""


class DaemonNotRunningError(PyTritonDaemonError):
    """No daemon is running where the client expects one, or the daemon does not respond."""


class DaemonStartError(PyTritonDaemonError):
    """The private daemon of a `Triton` object did not start, or exited during startup.

    Args:
        message: why, and what to do
        exit_code: exit code of the daemon, see docs/reference/cli.md; 5: a port is in use. None: unknown, or the
            daemon was stopped
    """

    def __init__(self, message: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RegistrationError(PyTritonDaemonError):
    """A model could not be registered. The daemon has rolled the registration back.

    Args:
        message: what failed and what to do
        model_name: name of the model, if known
        remote_traceback: formatted traceback of the worker or the daemon, if the failure occurred there
    """

    def __init__(
        self,
        message: str = "",
        *,
        model_name: str | None = None,
        remote_traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.model_name = model_name
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        if self.remote_traceback is None:
            return self.message
        return f"{self.message}\n\nRemote traceback:\n{self.remote_traceback.rstrip()}"


class ModelExistsError(RegistrationError, PyTritonInvalidOperationError):
    """A model with this name is already registered. Pass ``replace=True`` to replace it."""


class FleetError(RegistrationError):
    """A change failed on a node of a fleet. It was undone on the other nodes if possible.

    Args:
        message: what failed on which node, and the outcome on the others
        model_name: name of the model concerned, if any
        failures: node -> error, for each node that failed
    """

    def __init__(
        self,
        message: str = "",
        *,
        model_name: str | None = None,
        failures: Mapping[str, Exception] | None = None,
    ) -> None:
        super().__init__(message, model_name=model_name)
        self.failures = dict(failures or {})


class CanaryError(FleetError):
    """A new version performed worse than the current one on the canary nodes and was rolled back.

    Args:
        message: in what respect it was worse, and the outcome on each node
        model_name: name of the model
        failures: node -> error, for each node that could no longer be observed
    """


class ModelNotFoundError(PyTritonDaemonError):
    """No model of that name is registered with the daemon.

    Args:
        message: the requested name, and the existing models
        model_name: the requested name
    """

    def __init__(self, message: str = "", *, model_name: str | None = None) -> None:
        super().__init__(message)
        self.model_name = model_name


class PicklingError(RegistrationError):
    """The callable cannot be sent to a worker, because an object that it refers to cannot be pickled.

    Args:
        message: the complete message; see `naming`
        offender: description of the object that cannot be pickled, with which users can find it in their code
        model_name: name of the model being registered, if known
    """

    def __init__(
        self, message: str = "", *, offender: str | None = None, model_name: str | None = None
    ) -> None:
        super().__init__(message, model_name=model_name)
        self.offender = offender

    @classmethod
    def naming(
        cls, subject: str, offender: str, reason: str, *, model_name: str | None = None
    ) -> PicklingError:
        """Create an error whose message names the object that cannot be pickled and the possible solutions.

        Args:
            subject: what was being pickled, e.g. ``"the callable 'infer_fn'"``
            offender: the object that cannot be pickled, e.g. ``"infer_fn.<closure 'lock'> (_thread.lock)"``
            reason: message of the original exception
            model_name: name of the model being registered, if known
        """
        message = (
            f"Cannot pickle {subject}: {offender} cannot be sent to another process ({reason}). "
            "Solutions: "
            "(1) create the object in the worker: register a class or function that creates the callable, with "
            "factory=True; "
            "(2) create it in the callable on first use, instead of before the registration; "
            "(3) implement __getstate__ or __reduce__ in its class, without this object; "
            "(4) move the code to an importable module and register 'module:attribute'."
        )
        return cls(message, offender=offender, model_name=model_name)
