"""The encoder-only masked diffusion model, AO-GPT small's twin: the same parameters, full attention, the masked loss.

    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py config/mdm_small.py

Hardware, time, result: not yet run; 1, 8 and 16 GPUs: see ao_gpt_small.py. It validates by the any-order bound alone.
"""
out_dir = 'out/mdm_small'
attention = 'bidirectional'
l2r_ratio = 0.0     # left to right is no direction for it
