"""The client side of `register`: packs the callable and its environment into a message. Private."""
