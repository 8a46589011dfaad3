"""Triton Python models (`model.py`) in a worker: loading, readiness, execution.

Holds what only the python backend's interface needs.
"""
