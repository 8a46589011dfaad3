"""The types that users' callables get. The path ``pytriton.proxy`` is kept from PyTriton."""
