"""Write a checkpoint as a folder that transformers loads, offline and to the last bit.

    python export_hf.py --ckpt=out/quickstart/ckpt.pt --out=out/quickstart/hf
    python sample.py --ckpt=out/quickstart/hf

    AutoModelForCausalLM.from_pretrained('out/quickstart/hf', trust_remote_code=True)

The folder holds the weights in safetensors, the tokenizer, model.py with views for AutoModel, AutoModelForCausalLM and
AutoModelForMaskedLM, and a model card, whose licence is left to you. It is a checkpoint for all other commands."""

from anyorder.machine.terminal import one_line_errors, read_options

# fmt: off

ckpt = 'out/ckpt.pt'   # a checkpoint: a path, or hf:OWNER/REPO[/path.pt]
out = ''               # the folder to write, which must be new; it appears whole or not at all
weights = 'ema'        # 'ema' or 'raw'
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

import os

from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint, tokenizer_of
from anyorder.machine.files import check_folder, whole_folder
from anyorder.others.exported import read_exported, write_exported
from anyorder.others.gpt2 import GPT2_N_TOKENS
from anyorder.training.run_folder import read_log

MEASURED = {
    'val_any': 'any order (bound)',
    'val_l2r': 'left to right',
    'val_own': 'its own order',
}  # names of a log


def validation(ckpt, iter_num):
    """Rows (name, nats a token): the validation of the average at this iteration, by the log beside the checkpoint. A
    checkpoint that another run moved aside has none, because the log belongs to the other run."""
    path = os.path.join(os.path.dirname(ckpt), 'log.jsonl')
    log = (
        read_log(path)
        if ckpt.endswith('.pt') and os.path.isfile(ckpt) and os.path.isfile(path)
        else []
    )
    last = [entry for entry in log if entry.get('iter') == iter_num][-1:]
    return [
        (said, entry[name]) for entry in last for name, said in MEASURED.items() if name in entry
    ]


def main(config):
    # the plan
    check_folder('out', config.out)
    if os.path.isdir(config.out) and os.listdir(config.out):
        raise ValueError(
            f'out must name a new folder, and {config.out} holds files: choose another name, or remove it'
        )
    entries = load_checkpoint(config.ckpt)
    ema = entries.get('ema_model')
    if (
        config.weights == 'raw'
        and isinstance(ema, dict)
        and ema.get('shadow_params') is entries['model']
    ):
        raise ValueError(
            f'{config.ckpt} is a folder of one set of weights, and they are not raw: leave out --weights'
        )
    model = model_from_checkpoint(entries, config.weights)
    known = (
        'tokenizer' in entries or model.config.n_real == GPT2_N_TOKENS
    )  # else the file does not say
    tokenizer = tokenizer_of(config.ckpt, entries) if known else None
    measured = validation(config.ckpt, entries.get('iter_num')) if config.weights == 'ema' else []

    # the work
    with whole_folder(config.out) as folder:
        write_exported(folder, model, entries, tokenizer, config.weights, measured)
        if digest(model_from_checkpoint(read_exported(folder), config.weights)) != digest(model):
            raise ValueError(
                f'{config.out}: the weights that were read back differ from the weights of the checkpoint'
            )

    # the table
    sizes = {
        name: os.path.getsize(os.path.join(config.out, name))
        for name in sorted(os.listdir(config.out))
    }
    table = {
        'checkpoint': f'{config.ckpt}: {config.weights} weights, iteration {entries.get("iter_num", "?")}',
        'model': f'{model.n_parameters():,} parameters, digest {digest(model)}, read back',
        'tokenizer': tokenizer.name
        if tokenizer
        else f'not known for {model.config.n_real} tokens: left out',
        'validation': ', '.join(f'{name} {nats:.4f} nats a token' for name, nats in measured),
        **{name: f'{size:,} bytes' for name, size in sizes.items()},
    }
    print('\n'.join(f'{name:<24}{value}' for name, value in table.items() if value))
    print(f'written to {config.out}; choose a licence in its README.md before you publish it')


if __name__ == '__main__':
    with one_line_errors():
        main(options)
