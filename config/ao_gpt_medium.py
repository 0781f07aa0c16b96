"""AO-GPT medium of the paper on OpenWebText: 425.8M parameters, context 1024.

    python data/prepare.py openwebtext
    # one GPU: 64 micro-batches an update
    python train.py config/ao_gpt_medium.py
    # eight: each runs 8 of them
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_medium.py

What more GPUs and SLURM need: see ao_gpt_small.py. With more memory: --batch_size=16
--gradient_accumulation_steps=32.

Hardware, time, result: not yet run to the end. The paper's zero-shot left-to-right perplexity at
this size: LAMBADA 42.44, WikiText2 31.52. The released weights saw 1,048,576 tokens an update and a
weight decay of 0.03."""

out_dir = 'out/ao_gpt_medium'
init_from = 'auto'  # the same command goes on after a stop
dataset = 'openwebtext'
n_layer = 24
n_head = 16
n_embd = 1024
batch_size = 8
gradient_accumulation_steps = 64  # 8 * 64 * 1024 = 524,288 tokens an update
max_iters = 460000  # where the released checkpoint stands
learning_rate = 3e-4
eval_iters = 40
