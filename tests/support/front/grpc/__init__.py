"""Calls of gRPC to the front: what is asked, what NVIDIA's executable says otherwise, a program that echoes."""
