"""placeholder"""
from __future__ import annotations
import json
def write(results, out):
    (out / "results.json").write_text(json.dumps(results, indent=1, default=str))
