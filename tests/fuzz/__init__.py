"""Fuzzing of every parser that reads what others send or store; docs/testing.md describes it."""
