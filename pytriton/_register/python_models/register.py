"""Registers models of Triton's python backend: a `model.py`, its class, or a whole repository of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pytriton._control.daemon_view import DaemonView, Report, reporter
from pytriton._protocol import messages
from pytriton.run_options import RegisterModelOptions, takes
from pytriton.served_model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pytriton._register.python_models.model_programs import ConfigSource, ModelSource
    from pytriton.daemon import DaemonClient
    from pytriton.run_options import StrPath


class PythonModelRegistration(DaemonView):
    """The methods of `DaemonClient` that register Triton Python models, which it inherits."""

    @property
    def _client(self) -> DaemonClient:
        return cast("DaemonClient", self)  # nothing else inherits from this

    @takes(RegisterModelOptions)
    def register_model(
        self,
        model: ModelSource,
        model_name: str | None = None,
        *,
        config: ConfigSource = None,
        version: int | None = None,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterModelOptions],
    ) -> Any:
        """Serve a Triton Python model, a `model.py`, or a framework's file as it is. All or nothing.

        Returns when the model answers requests. A file is one of ONNX (`.onnx`), PyTorch (`.pt`, `.pt2`), TensorFlow
        (`.savedmodel`), scikit-learn (`.joblib`, `.pkl`), XGBoost (`.ubj`, `.json`) or LightGBM (`.txt`). Workers load
        it
        from its original path. `config` must describe the tensors that the file does not.

        Returns a `Model`; for a whole model repository a list of them, as `register_repository` does.

        `config.pbtxt`, instance groups, parameters, batching and `auto_complete_config` are respected;
        docs/how-to/model-py.md describes how, and the differences from Triton's own python backend.

        Args:
            model: a model's folder in a model repository, on the daemon's machine; or a class with the
                methods of `TritonPythonModel`; or a repository, the folder of such folders; or a model file
            model_name: default: the configuration's, or the folder's or class's own
            config: a config.pbtxt to use instead of the folder's: a path, the text itself, or its JSON form
            version: which of the numbered folders to serve (default: those selected by the version policy; each has
                its own workers)
            progress: as for `register`
            options: how it runs: those of `register` except `factory`, `check`, `strict`, `isolation` and
                `model_version`; each is described in `pytriton.run_options` and by `help(DaemonClient.register_model)`

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the model does not exist, its configuration or
                an argument is invalid, or the environment cannot be created.
            ModelExistsError: the name is taken and `replace` is not set.
            RegistrationError: the model failed in the worker or in tritonserver; carries the remote
                traceback.

        Example:
            >>> model = client.register_model("models/add_sub", instances=2)  # doctest: +SKIP
        """
        from pytriton._register.python_models.model_files import is_model_file, prepare_file
        from pytriton._register.python_models.model_programs import prepare_model
        from pytriton._register.python_models.whole_repository import is_repository

        if is_repository(model):
            own = {"model_name": model_name, "config": config, "version": version}
            given: dict[str, Any] = {**options, **own}
            return self.register_repository(str(model), progress=progress, **given)
        with reporter(progress, model_name or str(model)) as report:
            if is_model_file(model):
                path = cast("StrPath", model)
                message, payloads = prepare_file(path, model_name, config, version, options, report)
            else:
                message, payloads = prepare_model(
                    model, model_name, config, version, options, report
                )
            name = message.spec.name
            answer = self._ask(message, messages.Registered, payloads, report, model=name)
        return Model(self._client, answer.model)

    @takes(RegisterModelOptions)
    def register_repository(
        self,
        folder: StrPath,
        *,
        progress: bool | Report | None = None,
        **options: Unpack[RegisterModelOptions],
    ) -> list[Model]:
        """Serve all models of a model repository, which must be Triton Python models; one registration for each.

        All or nothing: if one fails, those before it are unregistered or rolled back.
        To serve a repository with other kinds of models, use the daemon's setting `model_repository`.

        Args:
            folder: the repository, on the daemon's machine
            progress: as for `register`
            options: as for `register_model`, applied to all models

        Raises:
            PyTritonBadParameterError, PyTritonValidationError: the repository does not exist, contains a model that is
                not
                a Python model, or a model or an argument is invalid. Nothing was registered.
            RegistrationError: one failed; states which, and what happened to the others.

        Example:
            >>> for model in client.register_repository("models", replace=True): ...  # doctest: +SKIP
        """
        from pytriton._register.python_models.whole_repository import register_all, repository_of

        repository = repository_of(folder, options)
        with reporter(progress, repository.folder.name) as report:

            def serve(message: messages.Register, payloads: Sequence[bytes]) -> Model:
                name = message.spec.name
                answer = self._ask(message, messages.Registered, payloads, report, model=name)
                return Model(self._client, answer.model)

            return register_all(repository, self._client, serve, report)
