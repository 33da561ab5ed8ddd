"""Modes of `heterps plan` besides the plan of one job."""
