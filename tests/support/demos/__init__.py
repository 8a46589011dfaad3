"""What the demonstration scripts run: crashes, cancelled streams, a fleet."""
