"""Files that processes share: the runtime directory, files of one user alone, the list of shared memory."""
