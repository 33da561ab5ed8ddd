"""`heterps plan`, beyond the plan of one job."""
