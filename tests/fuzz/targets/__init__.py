"""The parsers to fuzz, one module per room."""
