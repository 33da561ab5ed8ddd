"""The project's container images: `python -m images` builds them (docs/images.md)."""
