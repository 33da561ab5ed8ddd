"""The exact search: the cheapest stages and pods for a problem, with a certificate."""
