"""How do texts become tokens, sets on disk and batches?

tokenizer.py makes tokens of a text. A data set is a folder, of which meta.py says what lies in it.
folder.py writes it of a Source, see documents.py, which sources.py, prepared.py and arrays.py open.
../datasets.py finds it by its name, sets.py has a split of it, and blocks.py cuts that for a
run."""
