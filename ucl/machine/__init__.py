"""The machine of a run: devices, memory, files, checkpoints, and determinism."""
