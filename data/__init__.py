"""How text becomes tokens (prepare.py, prompts.py), tokens become batches (blocks.py), and where files of the hub come from (hub.py)."""
