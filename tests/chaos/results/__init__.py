"""Results: recovery times, judgements, the use of resources, and reports of them."""
