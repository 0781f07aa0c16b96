"""What all runs for the findings share: 32 bytes at a time of the English inside Python, a network that takes minutes.

    python config/findings/run.py --help                               # says what there is to find
    python train.py config/findings/base.py --seed=1 --out_dir=out/base

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 2 min 20 s.
Result: 2.180 nats per byte in random order, 1.915 left to right (two seeds); what the findings say is in
results/findings.md."""
dataset = 'pydocs'
block_size = 32
n_layer = 2
n_head = 2
n_embd = 64
gate_init = 1.0             # any-order learning starts on a plateau; open gates leave it sooner
batch_size = 64
optimizer = 'muon'
max_iters = 3000
learning_rate = 1e-2
muon_learning_rate = 0.04
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 150
eval_iters = 24
log_interval = 150          # as validation: the log stays small
save_interval = 3000
n_threads = 1
