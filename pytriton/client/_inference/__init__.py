"""Validates requests, converts their tensors, and processes the responses. Private; uses `_transport`."""
