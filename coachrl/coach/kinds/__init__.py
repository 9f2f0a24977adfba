"""The coaches: a language model, several together, and what may stand around one."""
