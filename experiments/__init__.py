"""The project's experiments: `python -m experiments` regenerates every table and picture of docs/experiments.md."""
