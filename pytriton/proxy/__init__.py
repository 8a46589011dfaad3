"""What users' callables are handed. The path ``pytriton.proxy`` is kept from PyTriton."""
