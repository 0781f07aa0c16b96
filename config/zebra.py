"""Zebra puzzles of 3 to 6 houses and attributes: the network of Kim et al., 19M parameters, and 3.4M for 3,463 symbols.

    python data/puzzles.py zebra --n_train=200000
    python data/puzzles.py zebra --largest=4 --name=zebra_small
    python train.py config/zebra.py --dataset=zebra_small --max_iters=20000 --out_dir=out/zebra_small
    python train.py config/zebra.py --init_from=out/zebra_small/ckpt.pt
    python eval_puzzle.py --ckpt=out/zebra/ckpt.pt

Hardware, time, result: not yet run at this size, which wants a GPU. A network of 1.8M parameters on one core of a
CPU learns them in part, and only after puzzles of 3 or 4 houses: 4.7 % solved after 3 hours (results/puzzles.md)."""
out_dir = 'out/zebra'
dataset = 'zebra'
block_size = 66
attention = 'bidirectional'
n_layer = 6
n_head = 8
n_embd = 480
gate_init = 1.0
batch_size = 128
l2r_ratio = 0.0
optimizer = 'muon'
learning_rate = 2e-3
min_lr = 2e-4
warmup_iters = 100
ema_decay = 0.999
eval_interval = 500
eval_iters = 7
log_interval = 50
save_interval = 500
