"""Agents at work, and what a team is made of: roles, tools, advisers and the state that they act on."""
