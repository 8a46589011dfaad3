"""The few functions of CUDA's driver that the rows need, through ctypes: they work without torch, on any CUDA version."""

from __future__ import annotations

import ctypes
from functools import cache

#: Bytes of a cudaIpc handle.
HANDLE_BYTES = 64


class CudaError(Exception):
    """A function of the driver failed, or there is no driver; the text says which and why."""


class IpcHandle(ctypes.Structure):
    """A cudaIpcMemHandle_t, which functions take by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no NVIDIA driver: {error}") from error
    _check(driver, "cuInit", driver.cuInit(0))
    return driver


def _check(driver: ctypes.CDLL, name: str, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    _check(driver, name, getattr(driver, name)(*arguments))


def device_count() -> int:
    """Return the number of GPUs that this process sees.

    Raises:
        CudaError: there is no driver, or it finds no GPU.
    """
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def describe() -> dict[str, object]:
    """Return name, UUID, and memory in bytes of the first GPU that this process sees, and the driver's CUDA version."""
    name, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    total, version = ctypes.c_size_t(), ctypes.c_int()
    _call("cuDeviceGetName", name, 256, 0)
    _call("cuDeviceGetUuid", uuid, 0)
    _call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
    _call("cuDriverGetVersion", ctypes.byref(version))
    driver = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return {
        "name": name.value.decode(),
        "uuid": uuid.raw.hex(),
        "total": total.value,
        "driver": driver,
    }


@cache
def _primary_context() -> ctypes.c_void_p:
    """Return the context of the first GPU that torch uses, too."""
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    return context


def _use_gpu() -> None:
    """Make the context current in this thread, as all functions about memory require."""
    _call("cuCtxSetCurrent", _primary_context())


def used() -> int:
    """Return the bytes in use on the GPU, by all processes."""
    _use_gpu()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def allocate(size: int) -> int:
    """Allocate and clear memory on the GPU; return its address."""
    _use_gpu()
    address = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    _call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
    _call("cuCtxSynchronize")
    return address.value


def free(address: int) -> None:
    """Free memory of the GPU."""
    _use_gpu()
    _call("cuMemFree_v2", ctypes.c_uint64(address))


def write(address: int, data: bytes) -> None:
    """Copy bytes to the GPU."""
    _use_gpu()
    _call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
    _call("cuCtxSynchronize")  # other processes read it


def read(address: int, size: int) -> bytes:
    """Copy bytes from the GPU."""
    data = ctypes.create_string_buffer(size)
    _use_gpu()
    _call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
    return data.raw


def ipc_handle(address: int) -> bytes:
    """Return the handle with which another process can map an allocation."""
    _use_gpu()
    handle = IpcHandle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
    return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES)
