"""Triton Python models (`model.py`) in a worker: loading, readiness and execution.

Contains only what the interface of Triton's python backend needs beyond the rest of the worker.
"""
