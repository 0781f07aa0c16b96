"""The first run: 64 bytes at a time of the English that ships inside Python.

    python train.py config/quickstart.py

Hardware: AMD EPYC with AVX-512 BF16, torch 2.13.0. Time: about 2 min on one core, data and samples
included.
Result: 3.18 bits per byte in random order, 2.84 left to right; the unigram entropy is 4.67."""

out_dir = 'out/quickstart'
init_from = 'auto'  # the same command again goes on, or says that the run is finished
block_size = 64
n_layer = 2
n_head = 3
n_embd = 96
network = 'gate_init=1'  # any-order learning starts on a plateau; open gates leave it sooner
batch_size = 32
optimizer = 'muon'
muon_learning_rate = 0.04
max_iters = 1700
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 50
ema_decay = 0.99
eval_interval = 340
eval_iters = 24
