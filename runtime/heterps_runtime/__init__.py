"""What runs in the pods. This file imports nothing: the operator reads `contract` through it."""
