"""AO-GPT small with Muon on the matrices of attention and MLP and AdamW on the rest, otherwise config/ao_gpt_small.py.

    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py config/ao_gpt_small_muon.py

Hardware, time, result: not yet run. Muon's step is scaled to a matrix's shape and does not depend on the width:
its rate is the one that a sweep at width 64 found (results/optimizer.md). AdamW's rate for embeddings, AdaLN and
head falls with the width, and stays the paper's. What 1, 8 and 16 GPUs need: see ao_gpt_small.py."""
out_dir = 'out/ao_gpt_small_muon'
optimizer = 'muon'
muon_learning_rate = 0.04
