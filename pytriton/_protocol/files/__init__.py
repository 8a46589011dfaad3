"""Files that processes share: the runtime directory, files private to one user, the list of shared memory."""
