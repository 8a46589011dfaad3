"""Communication with servers: addresses, connections, load balancing, waiting, and failures. Private."""
