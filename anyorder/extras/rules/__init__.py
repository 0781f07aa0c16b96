"""Rules of the literature by which a step chooses its blanks, which anyorder/generation/rules.py
names, and the rounds in which a text is revised."""
