"""How fast is an update?

    python -m anyorder.extras.speed train
    python -m anyorder.extras.speed train --vocab_size=256 --n_tokens=256 --block_size=256

Tokens/s, model FLOPs, MFU and peak memory of an update, the seconds of the first one, which
compiles, and the plain way: float32, eager, N + 1 slots, AdaLN for every slot, a permutation drawn
for each row, all logits at once, the average tensor by tensor."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least

# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 6  # blocks
n_head = 6  # heads of attention
n_embd = 384  # width
# what is timed
batch_size = 4  # rows
n_updates = 3  # updates of a run
optimizer = 'adamw'  # or 'muon', as in train.py
compile = True  # torch.compile for ours, where there is a compiler
plain = True  # the plain way too
repeats = 2  # runs of each; the fastest counts
out = ''  # a JSON file for the figures
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from anyorder.extras.speed.models import (
    HEADING,
    about,
    format_row,
    plain_step,
    times_of_update,
    training_step,
)
from anyorder.machine.devices import peak_flops, resolve_device
from anyorder.machine.files import check_out, write_json
from anyorder.training.clock import training_flops


def main(config):
    at_least(config, 1, 'batch_size', 'n_updates', 'repeats')
    check_out('out', config.out, '.json')
    device, dtype = resolve_device(config.device, config.dtype)
    n_tokens = config.batch_size * config.block_size
    model, compiled, step = training_step(config, device, dtype)
    peak = peak_flops(device, dtype)
    flops = training_flops(model, config.batch_size)
    title = f'{about(model, config, config.batch_size)}, {config.optimizer}, {device}'
    print(f'{title}; {flops / n_tokens / 1e6:,.1f} MFLOP a token, peak {peak / 1e12:,.3g} TFLOP/s')
    print(HEADING)
    result = {'config': config, 'title': title, 'rows': []}

    def measure(name, dtype, compiled, step):
        times = times_of_update(step, config, device)
        time = times['seconds']
        row = {'name': name, 'dtype': dtype, 'compiled': compiled} | times
        row |= {'tokens_per_sec': n_tokens / time, 'mfu': flops / time / peak}
        print(format_row(row), flush=True)
        result['rows'].append(row)
        if config.out:
            write_json(config.out, result)
        return time

    ours = measure('ours', dtype, compiled, step)
    if config.plain:
        del model, step
        slow = measure('plain', 'float32', False, plain_step(config, device))
        print(f'ours is {slow / ours:.2f} times as fast')


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
