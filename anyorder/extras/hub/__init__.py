"""How do tools of others load a model? Folders for transformers, and GPT-2 as a start."""
