"""9 x 9 Sudoku, a model of 962,048 parameters for one core of a CPU, trained on puzzles that
puzzles make generates.

    python -m anyorder.extras.puzzles make sudoku --n_train=200000
    python train.py config/sudoku.py
    # the encoder
    python train.py config/sudoku.py --network=encoder,gate_init=1 --out_dir=out/sudoku_encoder
    python -m anyorder.extras.puzzles solve --ckpt=out/sudoku/ckpt.pt

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 47 min undisturbed.
Result: 55.8 % of 500 unseen puzzles solved by margin, 0.0 % in random order; the encoder 86.4 and
8.2 % (results/puzzles)."""

out_dir = 'out/sudoku'
dataset = 'sudoku'
block_size = 81
n_layer = 3
n_head = 4
n_embd = 128
network = 'gate_init=1'
batch_size = 64
l2r_ratio = 0.0
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 9000
learning_rate = 1e-2
min_lr = 5e-4
warmup_iters = 100
ema_decay = 0.995
eval_interval = 500
eval_iters = 4
log_interval = 50
compile = False
