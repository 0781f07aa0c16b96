"""How fast is it, against what, and what will a run cost?"""
