"""Calls of gRPC to the frontend: what is asked, what NVIDIA's executable says otherwise, a program that echoes."""
