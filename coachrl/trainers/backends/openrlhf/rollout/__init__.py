"""Replies drawn from engines, and the workers that play episodes with them."""
