"""AO-GPT small of the paper on OpenWebText: 170.6M parameters (131.9M without the untied head),
else as train.py.

    python data/prepare.py openwebtext
    # one GPU: 32 micro-batches an update
    python train.py config/ao_gpt_small.py
    # eight: each runs 4 of them
    torchrun --standalone --nproc_per_node=8 train.py config/ao_gpt_small.py
    # sixteen, 2 each: node_rank=1 on the other machine
    torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=HOST --master_port=29500 \
        train.py config/ao_gpt_small.py
    # the same on SLURM, requeued to the end
    sbatch --nodes=2 config/train.sbatch config/ao_gpt_small.py

The update is the same on all of them: gradient_accumulation_steps counts the micro-batches of all
processes together, and must be a multiple of their number. Where memory is short or plentiful,
change batch_size by some factor, and what counts batches by the opposite: --batch_size=32
--gradient_accumulation_steps=16 --eval_iters=10 for 1, 8 or 16 large GPUs.

Hardware, time, result: not yet run to the end. The paper's zero-shot left-to-right perplexity at
this size: LAMBADA 52.46, WikiText2 42.10. All is as in the paper; the released weights saw
1,048,576 tokens an update and a weight decay of 0.03."""

out_dir = 'out/ao_gpt_small'
init_from = 'auto'  # the same command goes on after a stop
dataset = 'openwebtext'
gradient_accumulation_steps = 32  # 16 * 32 * 1024 = 524,288 tokens an update
max_iters = 250000  # where the released checkpoint stands
eval_iters = 20
