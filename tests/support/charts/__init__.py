"""The Helm chart as it is rendered, and a pod of it on this machine."""
