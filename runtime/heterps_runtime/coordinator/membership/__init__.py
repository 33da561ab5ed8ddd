"""The members of a job: who they are, whether they live, and the generations that they form."""
