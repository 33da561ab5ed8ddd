"""Plans and their reasons: what is handed out, what limits it, what it is worth elsewhere."""
