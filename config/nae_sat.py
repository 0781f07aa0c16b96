"""
Latents and observations (L&O-NAE-SAT) with 25 latents and 275 observations, a model for one CPU.

    python data/puzzles.py nae_sat
    python train.py config/nae_sat.py
    python eval_puzzle.py --ckpt=out/nae_sat/ckpt.pt
    python eval_puzzle.py --ckpt=out/nae_sat/ckpt.pt --error_map=error_map.png

Hardware, time, result: not yet run to the end.
"""
out_dir = 'out/nae_sat'
dataset = 'nae_sat'
block_size = 300
n_layer = 3
n_head = 4
n_embd = 128
gate_init = 1.0
batch_size = 32
l2r_ratio = 0.0
optimizer = 'muon'
max_iters = 4000
learning_rate = 1e-2
muon_learning_rate = 0.04
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 500
eval_iters = 8
log_interval = 50
save_interval = 500
