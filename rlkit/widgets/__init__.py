"""What a learner plays with: one file per explorer, and the live run."""
