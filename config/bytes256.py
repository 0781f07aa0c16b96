"""The quickstart's text, 256 bytes at a time: the model of results/likelihood, lossless and
lengths.

    python train.py config/bytes256.py

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 30 min.
Result: 1.816 nats a byte in random order, 1.495 left to right."""

out_dir = 'out/bytes256'
block_size = 256
n_layer = 4
n_head = 4
n_embd = 128
network = 'rotary,gate_init=1'
batch_size = 16
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 3000
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 1000
eval_iters = 24
