"""Studies of a trained network's scores and tests that are not runs of their own."""
