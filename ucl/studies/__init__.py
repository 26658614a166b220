"""Studies of scores and memories: they train networks, but store no records."""
