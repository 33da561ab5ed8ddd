"""What the operator has last seen of the cluster."""
