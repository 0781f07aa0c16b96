"""Say how varied the samples in a file are, and how likely another model finds them.

    python sample.py --ckpt=out/ckpt.pt --n_samples=64 --out=samples.json
    python -m anyorder.extras.judge samples.json --metrics=gpt2-large

The file is one that sample.py wrote, and its checkpoint must still be there: it has the tokenizer.
A judge reads left to right. `--metrics` of sample.py says the same as soon as the samples are
written."""

import json

from anyorder.machine.files import read_text, reading
from anyorder.machine.terminal import one_line_errors
from configurator import configure

INPUTS = 'JSON files of sample.py'

# fmt: off

metrics = 'text'   # 'text': entropy and repetition; a checkpoint or gpt2-large: its perplexity too
device = 'auto'    # 'cpu', 'cuda', ...
# fmt: on


def main(config):
    for path in config.words:
        for name, said in lines_of(path, config).items():
            print(f'{name:<10}{said}')


def lines_of(path, config):
    """Return {name: what is said} of the samples in a file."""
    with reading(path, 'samples', 'name what sample.py wrote by --out=FILE.json'):
        result = json.loads(read_text(path))
        samples = result['samples']
        ckpt = result['config']['ckpt']
        n_each = result['config']['n_samples']
        prompts = {sample['prompt'] for sample in samples}

    # imports torch, for which --help and a missing file need not wait
    from anyorder.checkpoint import open_checkpoint
    from anyorder.extras.judge.metrics import measure, open_judge
    from anyorder.machine.devices import resolve_device

    device, _ = resolve_device(config.device, 'float32')
    tokenizer = open_checkpoint(ckpt).tokenizer
    judge = None
    if config.metrics != 'text':
        judge = open_judge(config.metrics, tokenizer)
    if len(prompts) == 1:
        n_each = 1  # else each prompt has samples that follow each other
    _, lines = measure(samples, tokenizer, judge, device, n_each)
    return lines


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(configure(globals()))
