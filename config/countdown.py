"""Countdown with 3 numbers up to 30, an encoder of 449,952 parameters for one core of a CPU.

    python -m anyorder.extras.puzzles make countdown3 --largest=30 --name=countdown3_30
    python train.py config/countdown.py
    # the decoder
    python train.py config/countdown.py --network=gate_init=1 --out_dir=out/countdown_decoder
    # a GPT, which learns left to right alone
    python train.py config/countdown.py --network=gate_init=1 --order=l2r --out_dir=out/gpt
    python -m anyorder.extras.puzzles solve --ckpt=out/countdown/ckpt.pt --orders=random,l2r,margin

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 1 min of processor time.
Result, seed 1: 12.5 % of 1,000 unseen puzzles solved by margin, 8.3 % in random order, 4.0 % left
to right, where random steps solve 11.1 %. Gone on to 1,400 updates and then to 1,900 (86 s more,
with python train.py --init_from=resume --out_dir=out/countdown --max_iters=1400, and again 1900)
42.3, 33.9 and 22.3 %, and the loss still falls (results/countdown)."""

out_dir = 'out/countdown'
dataset = 'countdown3_30'
block_size = 15
n_layer = 3
n_head = 4
n_embd = 64
network = 'encoder,gate_init=1'
batch_size = 128
l2r_ratio = 0.0
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 800
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 200
eval_iters = 4
log_interval = 100
compile = False
