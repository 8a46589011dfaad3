"""The client side of `register`: packs a callable and its environment into a message. Private."""
