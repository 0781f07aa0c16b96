"""
AO-GPT small of the paper on OpenWebText: 170.6M parameters (131.9M without the untied head), context 1024.

    python data/prepare.py openwebtext
    python train.py config/ao_gpt_small.py
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py

Hardware, time, result: not yet run to the end. The paper's zero-shot left-to-right perplexity at this size: LAMBADA 52.46, WikiText2 42.10.
Where paper and release differ this is the paper: the released weights saw 1,048,576 tokens an update and a weight decay of 0.03.
"""
out_dir = 'out/ao_gpt_small'
dataset = 'openwebtext'
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
batch_size = 16
gradient_accumulation_steps = 32    # 16 * 32 * 1024 = 524,288 tokens an update, over all processes together
max_iters = 250000                  # where the released checkpoint stands
learning_rate = 6e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.05
eval_iters = 20
