"""How fast is it, against what, and what will a run cost?

All that is compared is timed in one run on one machine, so that the ratios hold."""
