"""
AO-GPT medium of the paper on OpenWebText: 425.8M parameters, context 1024.

    python data/prepare.py openwebtext
    python train.py config/ao_gpt_medium.py                                     # 1 GPU: 64 micro-batches an update
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_medium.py   # 8: each runs 8 of them
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=HOST --master_port=29500 \
        train.py config/ao_gpt_medium.py                                        # 16: 4 each; node_rank=1 on the other
    sbatch --nodes=2 config/train.sbatch config/ao_gpt_medium.py                # the same on SLURM, requeued to the end

The update is the same on all of them, see ao_gpt_small.py. With more memory: --batch_size=16
--gradient_accumulation_steps=32.

Hardware, time, result: not yet run to the end. The paper's zero-shot left-to-right perplexity at this size:
LAMBADA 42.44, WikiText2 31.52. Where paper and release differ this is the paper: the released weights saw
1,048,576 tokens an update and a weight decay of 0.03.
"""
out_dir = 'out/ao_gpt_medium'
init_from = 'auto'                  # the same command goes on after a stop
dataset = 'openwebtext'
block_size = 1024
n_layer = 24
n_head = 16
n_embd = 1024
batch_size = 8
gradient_accumulation_steps = 64    # 8 * 64 * 1024 = 524,288 tokens an update, over all processes together
max_iters = 460000                  # where the released checkpoint stands
learning_rate = 3e-4
min_lr = 6e-5
warmup_iters = 2000
weight_decay = 0.05
eval_iters = 40
