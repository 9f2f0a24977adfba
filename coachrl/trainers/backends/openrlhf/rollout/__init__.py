"""Replies of vLLM engines, and the workers that play episodes with them."""
