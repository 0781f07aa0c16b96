"""What does it look like? Curves of runs, and a text as it is written."""
