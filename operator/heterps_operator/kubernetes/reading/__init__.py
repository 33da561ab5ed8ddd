"""Readers of objects from the API server, which may be malformed. Pure."""
