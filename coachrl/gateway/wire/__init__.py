"""The providers' wire formats: a request's body read as a `Call`, and replies and errors written in the same form."""
