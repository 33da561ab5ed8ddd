"""The entrants' processes, each in an environment that has what it imports, and all with `protocol`."""
