"""Integers that are no text: images, notes, graphs. `python data/prepare.py tokens` opens this
room."""
