"""The code that a job brings along (`spec.code`): fetched, checked and unpacked before a process starts.

Runs in an init container of the job's image. Imports no torch.
"""
