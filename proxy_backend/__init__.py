"""Code that runs inside tritonserver: a model's proxy, compiled or in Python, and the frontend.

backend/        the compiled proxy
python_proxy/   the same in Python: readable, and for machines without a C compiler
frontend/       the native frontend: HTTP and gRPC
interposer/     a library that is preloaded into tritonserver
"""

from __future__ import annotations
