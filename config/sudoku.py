"""
9 x 9 Sudoku of the size of Kim et al. (6M parameters), trained on puzzles that data/puzzles.py generates.

    python data/puzzles.py sudoku --n_train=200000
    python train.py config/sudoku.py
    python eval_puzzle.py --ckpt=out/sudoku/ckpt.pt

Hardware, time, result: not yet run to this length. 3,300 updates of 64 puzzles, 95 minutes on one core: 56 % of its test split solved by
margin, 0.2 % in random order; the encoder (--causal=False), a sixth of the size and 12 minutes: 83 % (results/README.md).
"""
out_dir = 'out/sudoku'
dataset = 'sudoku'
block_size = 81
n_layer = 3
n_head = 6
n_embd = 384
gate_init = 1.0
batch_size = 128
l2r_ratio = 0.0
optimizer = 'muon'
max_iters = 100000
learning_rate = 2e-3
muon_learning_rate = 0.02
min_lr = 2e-4
warmup_iters = 100
ema_decay = 0.999
eval_interval = 500
eval_iters = 7
log_interval = 50
save_interval = 500
