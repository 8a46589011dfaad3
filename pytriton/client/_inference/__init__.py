"""One request: its checks, its tensors, its steps, its responses. Over `_transport`. Private."""
