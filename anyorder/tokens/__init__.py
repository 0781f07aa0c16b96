"""How do texts become tokens, sets on disk and batches?

A data set is a folder: a meta.json, which meta.py reads and writes, and a file of tokens a split.
sets.py opens these, folder.py writes them, and ../datasets.py finds them by name."""
