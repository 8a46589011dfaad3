"""Processing of one request: validation, tensors, steps, responses. Uses `_transport`. Private."""
