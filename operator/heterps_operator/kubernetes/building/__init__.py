"""Builders of the objects that a job has on a cluster. Pure."""
