"""sigma-GPT small, the baseline of the paper: GPT-2's blocks, the target position added at the
input, a tied head.

    torchrun --standalone --nproc_per_node=8 train.py config/sigma_gpt_small.py

Hardware, time, result: not yet run to the end. The paper's zero-shot left-to-right perplexity at
this size: LAMBADA 68.61, WikiText2 57.66. What 1, 8 and 16 GPUs need: see ao_gpt_small.py."""

out_dir = 'out/sigma_gpt_small'
init_from = 'auto'  # the same command goes on after a stop
dataset = 'openwebtext'
network = 'sigma_gpt'
gradient_accumulation_steps = 32  # 16 * 32 * 1024 = 524,288 tokens an update
max_iters = 1000000  # where the released checkpoint stands
eval_iters = 20
