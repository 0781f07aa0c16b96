"""Latents and observations (L&O-NAE-SAT) with 25 latents and 275 observations, a model for one CPU.

    python -m anyorder.extras.puzzles make nae_sat
    python train.py config/nae_sat.py
    python -m anyorder.extras.puzzles solve --ckpt=out/nae_sat/ckpt.pt

Hardware: one core of an AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: 71 min undisturbed.
Result: 78.5 % of the observations agree with the latents in random order, 99.7 % left to right,
where 62.5 % is chance. Gone on to 18,000 updates (36 min more, with python train.py
--init_from=resume --out_dir=out/nae_sat --max_iters=18000) 90.3 and 100.0 %, and the loss is still
falling; (50, 250) wants --l2r_ratio=0.5 and 20,000 updates (results/puzzles). The target's
embedding is added in every layer, because AdaLN learns much later."""

out_dir = 'out/nae_sat'
dataset = 'nae_sat'
block_size = 300
n_layer = 3
n_head = 4
n_embd = 128
network = 'layer'
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 12000
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 200
eval_iters = 4
log_interval = 50
compile = False
