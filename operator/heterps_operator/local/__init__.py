"""Jobs on this machine: their processes, files and planner."""
