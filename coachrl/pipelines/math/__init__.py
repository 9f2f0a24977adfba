"""Teams that solve problems with one final answer."""
