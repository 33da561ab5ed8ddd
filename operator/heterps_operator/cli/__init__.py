"""The `heterps` command: one module per subcommand. Other packages do not depend on it."""
