"""Which puzzles are there, and who solves them?"""
