"""The `heterps` command: one module per subcommand; everything below it is usable without it."""
