"""`scripts/gpu-check`: builds a folder that checks pytriton-daemon on a machine with an NVIDIA GPU and no network.

`__main__` and `bundle` run where the folder is built. All other modules are copied into the folder: `check` runs the
rows, each in a process of its own (`row`), and needs only Python's standard library; the rows use what `bundle` packed.
"""
