"""Implements `pytriton.shared`: weights that exist in memory once and are mapped by all workers on a machine.

This package may import `pytriton._protocol`, `pytriton.exceptions` and numpy; torch only when tensors are requested.
"""
