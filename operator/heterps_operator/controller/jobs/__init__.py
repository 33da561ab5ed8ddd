"""One job's controller: from the stores to a turn of its control loop."""
