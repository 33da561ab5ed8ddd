"""One self-contained HTML page for a plan, or for a job: no script, and nothing to load."""
