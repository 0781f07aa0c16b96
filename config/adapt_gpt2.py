"""From GPT-2 to any order: its weights in the shape of sigma-GPT, which read left to right are
GPT-2.

    python data/prepare.py openwebtext
    torchrun --standalone --nproc_per_node=8 train.py config/adapt_gpt2.py
    python train.py config/adapt_gpt2.py --init_from=auto:gpt2-medium --batch_size=8 \\
        --gradient_accumulation_steps=64

The same command goes on. Hardware, time, result: not yet run. What a small model keeps:
results/adaptation."""

init_from = 'auto:gpt2'  # 'auto:DIR' for a folder of Hugging Face
out_dir = 'out/adapt_gpt2'
dataset = 'openwebtext'
gradient_accumulation_steps = 32  # 16 * 32 * 1024 = 524,288 tokens an update
max_iters = 20000  # 10 billion tokens
learning_rate = 3e-4
min_lr = 3e-5
warmup_iters = 500
ema_decay = 0.999
eval_iters = 20
