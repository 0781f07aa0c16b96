"""How fast is it, against what?

    python -m anyorder.extras.speed sample --batch_size=1
    python -m anyorder.extras.speed ensemble --block_size=256
    python -m anyorder.extras.speed train --block_size=256 --batch_size=8
    python -m anyorder.extras.speed grid --out=grid.json
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --out=frontier.json

sample    generation at several numbers of steps, and lossless, against the plain way
ensemble  the context-order ensemble of one block, against full-length passes
train     updates, against the plain way
grid      generation and updates by decoder, encoder and every other network
frontier  what fewer passes cost a trained model: nats, passes, slots, seconds, judged samples

All that is compared is timed in one run on one machine, so that the ratios hold.
`sample --help` and the others list their options. What a run will cost says train.py itself:
`train.py --plan=8xH100` uses plan.py of this room."""

from anyorder.machine.terminal import run_one_of

COMMANDS = ('sample', 'ensemble', 'train', 'grid', 'frontier')

if __name__ == '__main__':
    run_one_of(COMMANDS, __package__, __doc__)
