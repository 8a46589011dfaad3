"""Implements `pytriton.shared`: weights that exist once in memory and that all workers of a machine map.

This package may import `pytriton._protocol`, `pytriton.exceptions` and numpy; torch only when tensors are requested.
"""
