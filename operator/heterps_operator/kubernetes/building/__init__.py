"""Builders of a job's objects on a cluster. Pure."""
