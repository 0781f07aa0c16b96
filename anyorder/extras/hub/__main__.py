"""Write a checkpoint as a folder that transformers loads, to the last bit.

    python -m anyorder.extras.hub --ckpt=out/quickstart/ckpt.pt --out=out/quickstart/hf
    python sample.py --ckpt=out/quickstart/hf

    AutoModelForCausalLM.from_pretrained('out/quickstart/hf', trust_remote_code=True)

The folder holds the weights in safetensors, the tokenizer, and model.py with views for AutoModel,
AutoModelForCausalLM and AutoModelForMaskedLM. It is a checkpoint for all other commands."""

from anyorder.machine.terminal import one_line_errors, read_options

ckpt = 'out/ckpt.pt'  # a checkpoint: a path, or hf:OWNER/REPO[/path.pt]
out = ''  # the new folder to write, or an empty one; it appears whole or not at all
weights = 'ema'  # 'ema' or 'raw'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import os

from anyorder.checkpoint import Checkpoint, digest, model_from_checkpoint
from anyorder.extras.hub.exported import read_exported, write_exported
from anyorder.machine.files import check_folder, whole_files
from anyorder.report import print_table
from anyorder.weights import GPT2_N_TOKENS


def main(config):
    """Write the folder, read it back, and say what is in it."""
    check_folder('out', config.out)
    if os.path.isdir(config.out) and os.listdir(config.out):
        raise ValueError(f'out must be a new folder or an empty one: {config.out} is not empty')
    checkpoint = Checkpoint(config.ckpt)
    entries = checkpoint.entries
    is_average = entries.get('ema_model', {}).get('shadow_params') is entries['model']
    if is_average and config.weights == 'raw':
        raise ValueError(
            f'{config.ckpt} is a folder of one set of weights, and they are not raw: '
            'leave out --weights'
        )
    model = model_from_checkpoint(entries, config.weights)
    tokenizer = None
    if 'tokenizer' in entries or model.config.n_real == GPT2_N_TOKENS:
        tokenizer = checkpoint.tokenizer
    with whole_files(os.path.realpath(config.out)) as (folder,):
        os.makedirs(folder)
        write_exported(folder, model, entries, tokenizer, config.weights)
        read_back = digest(model_from_checkpoint(read_exported(folder), config.weights))
        if read_back != digest(model):
            raise ValueError(
                f'{config.out}: the weights that were read back differ from the weights of the '
                'checkpoint'
            )

    name = 'unknown' if tokenizer is None else tokenizer.name
    if not os.path.isfile(os.path.join(config.out, 'tokenizer.json')):
        name += ': left out, transformers has none such'
    about = {
        'checkpoint': checkpoint.about(config.weights),
        'model': f'{model.n_parameters():,} parameters, digest {read_back}, read back',
        'tokenizer': name,
        'written': config.out,
    }
    print_table(about)


if __name__ == '__main__':
    with one_line_errors():
        main(options)
