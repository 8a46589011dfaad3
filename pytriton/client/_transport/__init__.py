"""Communicates with servers: addresses, connections, load balancing, waiting for readiness, failures. Private."""
