"""What a batch costs on this machine, by part, and how far that is from what the machine could do."""
