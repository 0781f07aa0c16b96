"""Which puzzles are there, and what counts as right?"""
