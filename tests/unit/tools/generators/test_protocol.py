"""Check the header from which the compiled proxy knows the messages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from generators import datatype_table, protocol

ROOT = Path(__file__).parents[4]


def test_the_committed_header_is_up_to_date() -> None:
    assert (ROOT / protocol.PATH).read_text() == protocol.header(), "run scripts/generate"


def test_a_message_on_a_lane_has_its_name_first() -> None:
    """The expected values are written by hand, from pytriton/_protocol/lanes/lane_messages.py."""
    header = protocol.header()
    assert '#define BATCH_NAME "Batch"\n' in header
    fields = "BATCH_id = 1, BATCH_requests = 2, BATCH_trace = 3, BATCH_reads = 4, BATCH_alone = 5, "
    fields += "BATCH_taken_ns = 6, BATCH_rows = 7"
    assert re.sub(r"\s+", " ", header).count(f"BATCH_SIZE = 8, BATCH_LEAST = 3, {fields}") == 1


def test_a_part_of_a_message_has_no_name() -> None:
    header = re.sub(r"\s+", " ", protocol.header())
    assert "TENSOR_REF_LEAST = 6, TENSOR_REF_name = 0," in header


def test_a_control_message_has_named_fields() -> None:
    header = protocol.header()
    assert '#define DETACH_NAME "Detach"\nenum { DETACH_FIELDS = 2 };\n' in header
    assert '#define DETACH_registration "registration"\n' in header


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_headers_are_c_without_a_warning(tmp_path: Path) -> None:
    source = tmp_path / "all.c"
    source.write_text(
        f'#include "{ROOT / protocol.PATH}"\n#include "{ROOT / datatype_table.PATH}"\n'
        "#define ROW(code, name, size) [TYPE_##name] = size,\n"
        "const int sizes[] = {DATATYPES(ROW)};\n"
    )
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
