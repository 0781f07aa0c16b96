"""Zebra puzzles of 3 or 4 houses and attributes, an encoder of 1,112,960 parameters for one core of
a CPU.

    python -m anyorder.extras.puzzles make zebra4
    python train.py config/zebra4.py
    python -m anyorder.extras.puzzles solve --ckpt=out/zebra4/ckpt.pt

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 15 min, and 1 min for the
data.
Result: 31.6 % of 1,000 unseen puzzles solved by margin, 21.3 % in random order. Gone on to 9,000
updates (19 min more, with python train.py --init_from=resume --out_dir=out/zebra4 --max_iters=9000)
80.6 and 50.5 %, to 12,000 (11 min more) 85.0 and 59.8 %. A decoder (--network=gate_init=1) learns
nothing of the clues in 10 min (results/puzzles)."""

out_dir = 'out/zebra4'
dataset = 'zebra4'
block_size = 28
n_layer = 3
n_head = 4
n_embd = 128
network = 'encoder,gate_init=1'
batch_size = 128
l2r_ratio = 0.0
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 4000
learning_rate = 1e-2
min_lr = 7e-4
warmup_iters = 100
ema_decay = 0.99
eval_interval = 200
eval_iters = 4
log_interval = 50
compile = False
