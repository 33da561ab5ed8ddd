"""Throughput measurement, and the operator's Prometheus metrics."""
