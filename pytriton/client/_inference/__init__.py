"""Processes a request: validation, conversion of tensors, responses. Private; uses `_transport`."""
