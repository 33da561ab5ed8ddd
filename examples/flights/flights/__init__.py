"""The flights example's model: an ordinary Python package with an ordinary PyTorch module."""
