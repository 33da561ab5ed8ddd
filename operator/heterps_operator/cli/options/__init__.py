"""Command-line options. Imports only cheap modules, as every command builds these parsers."""
