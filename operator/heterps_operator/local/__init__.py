"""Jobs on this machine: processes, files and the planner."""
