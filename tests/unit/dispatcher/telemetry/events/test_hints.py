"""The advice on failures: which words of a reason lead to which."""

from __future__ import annotations

import pytest

from pytriton.dispatcher.telemetry.events.hints import hint


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("OSError: [Errno 28] No space left on device: '/a'", "Free space on the disk"),
        ("m needs 2 GiB of memory_budget, and 1 GiB was free", "suspend_any_idle_model = true"),
        ("RuntimeError: CUDA error: invalid device ordinal", "CUDA_VISIBLE_DEVICES"),
        ("did not load its callable within 5 s (load_timeout_s)", "register with a higher value"),
        ("did not start within 30 s", "check the interpreter"),
        ("it used 900 bytes of memory, and may use 800 (limits)", "raise the limit"),
        ("ModuleNotFoundError: No module named 'torch'", "install it there"),
        ("model m is registered already", "replace=True"),
        ("FileNotFoundError: 'weights.bin'", "(cwd=)"),
        ("[Errno 13] Permission denied: 'weights.bin'", "lacks permission to read or execute"),
        ("worker w1 (pid 3) was ended by signal 11 (SIGSEGV)", "in the log"),
    ],
)
def test_words_lead_to_advice(reason: str, advice: str) -> None:
    assert advice in hint(reason)


def test_the_first_that_fits_counts() -> None:
    """A file of CUDA's own that lies on a full disk is a matter of the disk."""
    assert hint("No space left on device: cannot write CUDA's cache").startswith("Free space")


def test_unknown_words_get_no_advice() -> None:
    assert hint("the callable said something odd") == ""
