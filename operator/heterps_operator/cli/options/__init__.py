"""Options of the commands. Imports nothing that takes time: every command builds these parsers."""
