"""9 x 9 Sudoku by a GPU: an encoder of 1,226,048 parameters, 36,000 updates of 256 puzzles.

    python -m anyorder.extras.puzzles make sudoku --n_train=1000000 --name=sudoku_1m
    python train.py config/sudoku_long.py
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku_long/ckpt.pt \\
        --orders=margin,top_prob:0.999

Hardware: one H200, torch 2.11.0. Time: 4 min, and 40 min of a CPU for the puzzles.
Result: 93.2 % of 1,000 unseen puzzles solved by margin (results/puzzles)."""

out_dir = 'out/sudoku_long'
init_from = 'auto'
dataset = 'sudoku_1m'
block_size = 81
n_layer = 6
n_head = 4
n_embd = 128
network = 'encoder,input'
batch_size = 256
l2r_ratio = 0.0
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 36000
learning_rate = 1e-2
min_lr = 5e-4
warmup_iters = 500
ema_decay = 0.999
eval_interval = 12000
eval_iters = 4
log_interval = 100
