"""Rules of the literature by which a step chooses its blanks, beside those of
anyorder/generation/rules.py, which names them."""
