"""How do texts become tokens, sets on disk and batches?"""
