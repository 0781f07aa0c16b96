"""How text (prepare.py, prompts.py) and puzzles (puzzles.py, rules.py) become tokens, tokens become batches (blocks.py), and where files of
the hub come from (hub.py)."""
