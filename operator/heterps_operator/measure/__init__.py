"""Measured throughput in, Prometheus metrics out."""
