"""Teams that act in a small world: a tool that computes and a planner that decides."""
