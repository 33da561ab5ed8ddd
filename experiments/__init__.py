"""The project's experiments: `python -m experiments` generates every table and plot of docs/experiments.md."""
