"""Commands on the jobs of a cluster."""
