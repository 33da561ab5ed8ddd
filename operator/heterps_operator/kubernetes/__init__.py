"""HeterPS on Kubernetes: builders and readers of its objects, and what they need of the API server."""
