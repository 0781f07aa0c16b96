"""AdamW instead of Muon, at the rate and decay that a sweep at this size found best (results/optimizer.md).

    python train.py config/findings/base.py config/findings/adamw.py --seed=1 --out_dir=out/adamw

Hardware: as base.py. Time: 2 min. Result: 2.399 nats per byte in random order, 2.222 left to right (two seeds)."""
optimizer = 'adamw'
learning_rate = 2e-2
min_lr = 2e-3
weight_decay = 0.2
