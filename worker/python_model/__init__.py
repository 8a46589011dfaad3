"""Triton Python models (`model.py`) in a worker: loaded, asked whether they are ready, run.

Belongs here: what only the python backend's interface needs.
"""
