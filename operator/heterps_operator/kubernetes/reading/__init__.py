"""Readers of what the API server holds, which may be anything. Pure."""
