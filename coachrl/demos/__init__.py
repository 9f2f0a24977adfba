"""Demonstrations for the supervised warm start of models that cannot begin a pipeline from nothing."""
