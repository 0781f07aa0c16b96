"""How varied are samples, and how likely under another model? `--metrics` of sample.py opens this
room."""
