"""Write a checkpoint as a folder that transformers loads, to the last bit.

    python -m anyorder.extras.hub --ckpt=out/quickstart/ckpt.pt --out=out/quickstart/hf
    python sample.py --ckpt=out/quickstart/hf

    AutoModelForCausalLM.from_pretrained('out/quickstart/hf', trust_remote_code=True)

The folder holds the weights in safetensors, the tokenizer, and model.py with views for AutoModel,
AutoModelForCausalLM and AutoModelForMaskedLM. It is a checkpoint for all other commands."""

from anyorder.machine.terminal import one_line_errors, read_options

ckpt = 'out/ckpt.pt'  # a checkpoint: a path, or hf:OWNER/REPO[/path.pt]
out = ''  # the new folder to write; it appears whole or not at all
weights = 'ema'  # 'ema' or 'raw'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import os

from anyorder.checkpoint import Checkpoint, digest, model_from_checkpoint
from anyorder.extras.hub.exported import read_exported, write_exported
from anyorder.machine.files import check_folder, whole_files
from anyorder.weights import GPT2_N_TOKENS


def plan(config):
    """Check the options. Return the checkpoint's entries, its model and its tokenizer or None."""
    check_folder('out', config.out)
    if os.path.isdir(config.out) and os.listdir(config.out):
        raise ValueError(
            f'out must name a new folder, and {config.out} holds files: '
            'choose another name, or remove it'
        )
    checkpoint = Checkpoint(config.ckpt)
    entries = checkpoint.entries
    if config.weights == 'raw' and has_no_raw_weights(entries):
        raise ValueError(
            f'{config.ckpt} is a folder of one set of weights, and they are not raw: '
            'leave out --weights'
        )
    model = model_from_checkpoint(entries, config.weights)
    tokenizer = None
    if 'tokenizer' in entries or model.config.n_real == GPT2_N_TOKENS:
        tokenizer = checkpoint.tokenizer
    return entries, model, tokenizer


def has_no_raw_weights(entries):
    """Whether the weights of a checkpoint are an average that stands for the raw ones too."""
    ema = entries.get('ema_model')
    return isinstance(ema, dict) and ema.get('shadow_params') is entries['model']


def main(config):
    """Write the folder, read it back, and say what is in it."""
    entries, model, tokenizer = plan(config)
    with whole_files(os.path.realpath(config.out)) as (folder,):
        os.makedirs(folder)
        write_exported(folder, model, entries, tokenizer, config.weights)
        read_back = digest(model_from_checkpoint(read_exported(folder), config.weights))
        if read_back != digest(model):
            raise ValueError(
                f'{config.out}: the weights that were read back differ from the weights of the '
                'checkpoint'
            )

    iter_num = entries.get('iter_num', '?')
    print(f'checkpoint  {config.ckpt}: {config.weights} weights, iteration {iter_num}')
    print(f'model       {model.n_parameters():,} parameters, digest {digest(model)}, read back')
    name = 'unknown' if tokenizer is None else tokenizer.name
    is_there = os.path.isfile(os.path.join(config.out, 'tokenizer.json'))
    print(f'tokenizer   {name}{"" if is_there else ": left out, transformers has none such"}')
    print(f'written to {config.out}')


if __name__ == '__main__':
    with one_line_errors():
        main(options)
