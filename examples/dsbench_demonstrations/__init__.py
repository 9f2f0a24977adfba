"""Demonstrations for the supervised warm start of models that cannot begin the DSBench pipeline from nothing."""
