"""Every exception that users of this package can meet, outside the inference clients.

The ``PyTriton...`` names are those of PyTriton, with the same meaning and the same constructor. The
others belong to the daemon. All of them survive pickling with their attributes: they may be raised
in one process and shown in another.
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
    """Base of all our exceptions.

    Args:
        message: what was wrong, where, and what to do about it
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class PyTritonValidationError(PyTritonError):
    """A value given by the user cannot be right."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible in the present state."""


class PyTritonBadParameterError(PyTritonError):
    """A parameter of a model, tensor, batcher or decorator has an unusable value."""


class PyTritonModelConfigError(PyTritonError):
    """A Triton model configuration cannot be read."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised *by an inference callable*: no further inference is possible on this model.

    The batch in hand is answered with the error, then the whole server stops, so that whatever
    supervises it (systemd, Kubernetes) starts everything anew.
    """


class PyTritonRuntimeError(PyTritonError):
    """Something failed while a request was being handled."""


class CallError(PyTritonRuntimeError):
    """A call to another model (`pytriton.infer` and its kin) has failed.

    Args:
        message: what failed and what to do
        model_name: the model that was called
        code: the name of Triton's code for it, such as ``"NOT_FOUND"``, ``"INVALID_ARG"``, ``"UNAVAILABLE"`` or
            ``"INTERNAL"``, which is also that of an error of the model itself
    """

    def __init__(
        self, message: str = "", *, model_name: str | None = None, code: str = "INTERNAL"
    ) -> None:
        super().__init__(message)
        self.model_name = model_name
        self.code = code


class CallTimeoutError(CallError, TimeoutError):
    """A called model has not answered within the `timeout_s` of the call."""


class PyTritonDaemonError(PyTritonError):
    """Base of what can go wrong while talking to the daemon."""


class DaemonNotRunningError(PyTritonDaemonError):
    """No daemon answers where one was looked for."""


class DaemonStartError(PyTritonDaemonError):
    """The private daemon of a `Triton` object did not start, or ended while it did.

    Args:
        message: why, and what to do
        exit_code: what it ended with, see docs/reference/cli.md; 5: a port is in use. None: it was stopped
    """

    def __init__(self, message: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RegistrationError(PyTritonDaemonError):
    """A model was not registered; nothing of the attempt remains in the daemon.

    Args:
        message: what failed and what to do
        model_name: name under which the model should have been registered, if known
        remote_traceback: formatted traceback of the worker or the daemon, if the failure was there
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
    """The name is taken by a registered model. Pass ``replace=True`` to take it over."""


class FleetError(RegistrationError):
    """A change was not made on the nodes of a fleet: on none of them, where it could be undone.

    Args:
        message: what failed on which node, and what became of the others
        model_name: the model it was about, if it was one
        failures: the error of each node that refused, by its address
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
    """A new version did worse than the one that it was to replace, on the nodes that had it first; it was rolled back.

    Args:
        message: what was worse, and what became of it on which node
        model_name: the model
        failures: nodes of which nothing could be seen any more
    """


class ModelNotFoundError(PyTritonDaemonError):
    """No model of that name is registered with the daemon.

    Args:
        message: what was looked for and what exists
        model_name: the name that was looked for
    """

    def __init__(self, message: str = "", *, model_name: str | None = None) -> None:
        super().__init__(message)
        self.model_name = model_name


class PicklingError(RegistrationError):
    """The callable cannot travel to a worker because something it refers to cannot be pickled.

    Args:
        message: full text; `naming` composes one
        offender: the object that cannot be pickled, in words a user can find in their code
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
        """Compose the error that names the offending object and the ways out.

        Args:
            subject: what was being pickled, e.g. ``"the callable 'infer_fn'"``
            offender: what cannot be pickled, e.g. ``"infer_fn.<closure 'lock'> (_thread.lock)"``
            reason: text of the original exception
            model_name: name of the model being registered, if known
        """
        message = (
            f"Cannot pickle {subject}: {offender} cannot be sent to another process ({reason}). "
            "Ways out: "
            "(1) create that object inside the worker: register a class or function that builds "
            "the callable, with factory=True; "
            "(2) make it on first use inside the callable instead of before registering; "
            "(3) give its class a __getstate__/__reduce__ that leaves it out; "
            "(4) put the code in an importable module and register 'module:attribute'."
        )
        return cls(message, offender=offender, model_name=model_name)
