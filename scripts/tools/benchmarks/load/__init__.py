"""The load: the content of requests, their bytes on the wire, and the clients that send them."""
