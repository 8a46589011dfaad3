"""The types passed to users' callables. The path ``pytriton.proxy`` is PyTriton's."""
