"""gRPC calls to the frontend: the corpus, intended differences from NVIDIA's executable, and an echo program."""
