"""What a run computes on: devices, memory, files, and what makes it repeat bit for bit."""
