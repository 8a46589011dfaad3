"""The types that callables receive and return, under PyTriton's import path ``pytriton.proxy``."""
