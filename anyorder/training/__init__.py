"""How is a model trained?"""
