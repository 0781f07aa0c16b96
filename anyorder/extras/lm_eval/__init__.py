"""How does lm-evaluation-harness ask a model?"""
