"""The way to a server: addresses, connections, whose turn it is, waiting, and what can go wrong. Private."""
