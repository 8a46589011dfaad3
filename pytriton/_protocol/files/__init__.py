"""Files shared by processes: the runtime directory, files private to one user, and the registry of shared memory."""
