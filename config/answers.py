"""Questions and answers: the prompt of a document is given, and the loss counts its answer alone.

    python data/prepare.py text --source=sums.jsonl --tokenizer=bytes --name=sums
    python train.py config/answers.py
    python -m anyorder.extras.puzzles solve --ckpt=out/answers/ckpt.pt --split=val

A line of the source is {"prompt": "What is 45 + 78? ", "text": "123"}. The network is the
checkpoint's.

Hardware: one core of an AMD EPYC, torch 2.13.0. Time: 1 min.
Result: 93 +- 5 % of new sums of two numbers below 100 are right, three runs (results/answers)."""

init_from = 'auto:out/quickstart/ckpt.pt'  # or another checkpoint; the same command again goes on
out_dir = 'out/answers'
dataset = 'sums'
optimizer = 'muon'
muon_learning_rate = 0.02
batch_size = 64  # documents
max_iters = 2000
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 100
ema_decay = 0.999  # the last thousand updates or so
eval_interval = 200
