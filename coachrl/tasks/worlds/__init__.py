"""Small worlds to act in: generated, solvable, different in training and held-out sets. Pure state, no agents."""
