"""Demonstrations and measurements that documents refer to: crashes, cancelled streams, HAProxy, screenshots."""
