"""The command `ucl`."""
