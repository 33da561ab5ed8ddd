"""Planning beyond one job from scratch: several jobs, jobs that run, prices that change, stages by hand."""
