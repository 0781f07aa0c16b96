"""The second quickstart: 4 x 4 Sudoku, where a model that may choose its own order solves what a
random order does not.

    python train.py config/sudoku4.py
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku4/ckpt.pt

Hardware: one core of an Intel Xeon, torch 2.13.0. Time: 2 min 22 s of processor time, data
included.
Result: all of 1,000 test puzzles solved by margin, top_prob or entropy, 42.9 % in random order,
48.8 % left to right. There are only 12 solutions up to relabelling: 7 are trained on, 4 tested on
and 1 validates."""

out_dir = 'out/sudoku4'
dataset = 'sudoku4'
block_size = 16
n_layer = 3
n_head = 4
n_embd = 64
dropout = 0.1  # else the 168 solutions are learnt by heart and not the rules
network = 'gate_init=1'
batch_size = 128
l2r_ratio = 0.0
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 1200
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 250
eval_iters = 8
log_interval = 50
