"""Registration of Triton Python models: folders, classes and whole repositories of `model.py` files. Private."""
