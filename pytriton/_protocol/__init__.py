"""Code for communication between processes. Each module implements both ends of a connection.

All processes (client, dispatcher, worker, proxy) use this package. It imports only numpy, zmq, msgspec and
the standard library. Control messages (`messages`) are sent over ZeroMQ (`control`); batches are sent over
lanes (`lanes`), with their tensors in shared memory.
"""
