"""Several ranks of one job: each reduces its trace to a summary of a few kB, and these say who is late, and why."""
