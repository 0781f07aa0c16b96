"""
Go on from the weights of any checkpoint, on other text: a short warm-up, a low rate, an average that follows.

    python train.py config/finetune.py --init_from=out/quickstart/ckpt.pt --dataset=shakespeare_bytes

The shape of the network is the checkpoint's. A model that Muon has trained in minutes wants its own rate:
--optimizer=muon --learning_rate=3e-3 --muon_learning_rate=0.01.

Hardware, time, result: RESULT
"""
out_dir = 'out/finetune'
max_iters = 2000
batch_size = 16
learning_rate = 1e-4
min_lr = 1e-5
warmup_iters = 100
ema_decay = 0.999           # a few hundred updates back: the start is forgotten at the end
eval_interval = 200
