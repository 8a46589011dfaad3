"""The test suite's own machinery: costs of files, recovery from crashes, reruns."""
