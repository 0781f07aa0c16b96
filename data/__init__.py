"""How do text and puzzles become tokens (prepare.py, puzzles.py), sets on disk (sets.py) and batches (blocks.py)?"""
