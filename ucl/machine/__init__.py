"""The machine of a run: devices, memory, files, and determinism."""
