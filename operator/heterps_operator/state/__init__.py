"""What is known of a job: its status, what is observed of it, what it costs. Values only."""
