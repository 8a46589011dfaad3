"""Weights that the workers of a machine share: made once, mapped by all, gone with the last of them.

Belongs here: what `pytriton.shared` is made of: files, trees of arrays, sealed memory. May import: `pytriton._protocol`,
`pytriton.exceptions`, numpy; torch only where somebody asks for tensors.
"""
