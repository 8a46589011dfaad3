"""Weights shared by the workers of a machine: created once, mapped by all, freed with the last of them.

Belongs here: the implementation of `pytriton.shared`: files, trees of arrays, sealed memory. May import:
`pytriton._protocol`, `pytriton.exceptions`, numpy; torch only when tensors are requested.
"""
