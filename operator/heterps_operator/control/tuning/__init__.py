"""Numbers of workers and batch sizes while a job trains, by what is measured. Pure."""
