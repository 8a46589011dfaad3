"""Registers Triton Python models: folders, classes and repositories of `model.py` files. Private."""
