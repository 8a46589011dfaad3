"""After which exceptions a worker is replaced because its GPU failed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fakes.fake_worker import SPEC

from pytriton._protocol import messages
from pytriton.worker import fault_reports, gpu_faults
from pytriton.worker.gpu_faults import fault_of
from pytriton.worker.worker_limits import Allowance


def _error(kind: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    """Return an exception of a type with this full name, as in the frameworks, which are not installed."""
    module, _, name = kind.rpartition(".")
    error: Exception = type(name, (base,), {"__module__": module})(text)
    return error


#: As torch 2.14, CuPy 14, JAX 0.11, TensorFlow 2 and ONNX Runtime 1.32 raise them.
_MEMORY = [
    _error("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
    _error("torch.cuda.OutOfMemoryError", "CUDA out of memory."),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    _error("torch.AcceleratorError", "CUDA error: out of memory"),
    _error("cupy.cuda.memory.OutOfMemoryError", "Out of memory allocating 8 bytes", MemoryError),
    _error("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    _error("tensorflow.python.framework.errors_impl.ResourceExhaustedError", "OOM", Exception),
    _error("onnxruntime.capi.onnxruntime_pybind11_state.Fail", "[E] CUDA failure 2: out of memory", Exception),
]  # fmt: skip
_CUDA = [
    _error("torch.AcceleratorError", "CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    _error("cupy_backends.cuda.api.runtime.CUDARuntimeError", "cudaErrorIllegalAddress: illegal"),
    _error("numba.cuda.cudadrv.driver.CudaAPIError", "[700] Call to cuMemcpyDtoH results in UNKNOWN"),
    _error("onnxruntime.capi.onnxruntime_pybind11_state.Fail", "[E] CUDA failure 700: illegal", Exception),
]  # fmt: skip


@pytest.mark.parametrize("error", _MEMORY, ids=repr)
def test_a_batch_that_needs_too_much_gpu_memory_is_a_fault(error: Exception) -> None:
    assert str(fault_of(error)).startswith("a batch ran out of GPU memory (")


@pytest.mark.parametrize("error", _CUDA, ids=repr)
def test_an_error_of_cuda_is_a_fault(error: Exception) -> None:
    assert str(fault_of(error)).startswith("CUDA failed, and may refuse")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error: not of CUDA"),
        RuntimeError("the client said 'CUDA error: device-side assert triggered'"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        MemoryError("Unable to allocate 3 GiB"),
        _error("torch.TypeError", "expected Tensor"),
        _error("tensorflow.InvalidArgumentError", "could not convert string: CUDA error: x"),
        _error("shop.OutOfMemoryError", "CUDA out of memory"),
    ],
    ids=repr,
)
def test_other_exceptions_are_no_fault_of_a_gpu(error: Exception) -> None:
    assert fault_of(error) is None


def test_the_cause_of_an_exception_counts() -> None:
    error = ValueError("cannot classify")
    error.__cause__ = KeyError("x")
    assert fault_of(error) is None
    error.__cause__.__cause__ = _MEMORY[0]
    assert fault_of(error) == "a batch ran out of GPU memory (torch.OutOfMemoryError)"


def test_causes_that_form_a_circle_end() -> None:
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error
    assert fault_of(error) is None


def test_an_exception_whose_text_raises_is_judged_by_its_type() -> None:
    def broken(_: object) -> str:
        raise KeyError

    kind = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch", "__str__": broken})
    assert fault_of(kind()) == "a batch ran out of GPU memory (torch.OutOfMemoryError)"


@pytest.fixture
def no_fault_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_faults, "_noted", [])


@pytest.mark.usefixtures("no_fault_yet")
def test_a_reported_fault_makes_the_worker_due_for_recycling() -> None:
    allowance = Allowance(SPEC)
    fault_reports.report_error(ValueError("no fault of a GPU"))
    assert allowance.exceeded(1) is None
    fault_reports.report_error(_MEMORY[0])
    fault_reports.report_error(_CUDA[0])
    expected = "a batch ran out of GPU memory (torch.OutOfMemoryError)"
    assert allowance.exceeded(2) == (messages.RecycleReason.GPU, expected)
    assert allowance.exceeded(3) is None  # it was reported a moment ago


@pytest.fixture
def worker_thread() -> Iterator[None]:
    """This thread as a worker of the registrant's process."""
    fault_reports.report_to(logging.getLogger("registrant"), "m")
    yield
    del fault_reports._here.logger


@pytest.mark.usefixtures("no_fault_yet", "worker_thread")
def test_a_fault_of_a_worker_thread_recycles_nothing() -> None:
    fault_reports.report_error(_MEMORY[0])
    assert gpu_faults.noted() is None
