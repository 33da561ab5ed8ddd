"""Scenarios beyond planning one new job: several jobs, running jobs, changing prices, hand-written stages."""
