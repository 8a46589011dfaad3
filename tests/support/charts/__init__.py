"""The rendered Helm chart, and a pod of it run on this machine."""
