"""The programs of the demonstration scripts: crashes, cancelled streams, a fleet."""
