"""Which texts match a pattern, and what is a model's law of them?"""
