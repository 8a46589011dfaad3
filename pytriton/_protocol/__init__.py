"""The communication between processes, with both ends of each wire in one module.

Used by all processes (client, dispatcher, worker, proxy); imports numpy, zmq, msgspec and the
standard library only. Control travels as `messages` over `control` (ZeroMQ); batches travel as
`lane` messages with tensors in shared memory.
"""
