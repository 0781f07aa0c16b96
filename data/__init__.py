"""How text (prepare.py, tokenizers.py, prompts.py) and puzzles (puzzles.py, rules.py) become tokens, and tokens become batches
(blocks.py)."""
