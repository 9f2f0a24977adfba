"""Teams that write programs and tests."""
