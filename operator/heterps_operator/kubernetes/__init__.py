"""HeterPS on Kubernetes: builders and readers of its objects, and the API client."""
