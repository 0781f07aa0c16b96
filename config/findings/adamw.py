"""AdamW instead of Muon, at the rate and decay that a sweep at this size found best (results/README.md)."""
optimizer = 'adamw'
learning_rate = 2e-2
min_lr = 2e-3
weight_decay = 0.2
