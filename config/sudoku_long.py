"""9 x 9 Sudoku by a GPU: an encoder of 1,226,048 parameters, 50,000 updates of 256 puzzles.

    python -m anyorder.extras.puzzles make sudoku --n_train=1000000 --name=sudoku_1m
    # in pieces of 5 minutes, each of which goes on where the one before it was stopped
    timeout 290 python train.py config/sudoku_long.py
    S="python -m anyorder.extras.puzzles solve --ckpt=out/sudoku_long/ckpt.pt"
    $S --orders=margin,top_prob:0.999

Hardware: one H100 or H200 is meant, and none was at hand: the run is untried. Work: 8,200 TFLOP
(--plan=H200).
Result: open. 1,100 updates of 64 puzzles solve as many as 2,200 of three layers, at the same work
(results/puzzles)."""

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
max_iters = 50000
learning_rate = 1e-2
min_lr = 5e-4
warmup_iters = 500
ema_decay = 0.999
eval_interval = 5000
eval_iters = 4
log_interval = 100
