"""What does it look like? Curves, figures, and a text as it is written."""
