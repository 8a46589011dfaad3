"""Implementation of `pytriton.shared`: weights that exist once in memory and are mapped by all workers of a machine.

This package may import `pytriton._protocol`, `pytriton.exceptions` and numpy; torch only when tensors are requested.
"""
