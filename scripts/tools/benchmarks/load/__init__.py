"""The load: what a request holds, its bytes on the wire, and the clients that send it."""
