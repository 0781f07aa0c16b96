"""How do texts become tokens, sets on disk and batches?

A data set is a folder: a meta.json, which meta.py reads and writes, and a file of tokens a split.
folder.py writes it of a Source, see documents.py, which sources.py, prepared.py and arrays.py open.
../datasets.py finds it by its name, sets.py has a split of it as it is on disk, and blocks.py cuts
that for a run."""
