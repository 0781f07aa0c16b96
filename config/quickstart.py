"""
The first run: bytes of the Python documentation on two CPU cores in under 4 minutes.

    python train.py config/quickstart.py
"""
out_dir = 'out/quickstart'
dataset = 'pydocs'
block_size = 32
n_layer = 2
n_head = 2
n_embd = 64
gate_init = 1.0
batch_size = 128
optimizer = 'muon'
max_iters = 1500
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 250
save_interval = 500
