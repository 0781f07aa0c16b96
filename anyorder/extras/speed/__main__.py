"""How fast is it, against what?

    python -m anyorder.extras.speed bench --batch_size=1
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --out=frontier.json

All that is compared is timed in one run on one machine, so that the ratios hold.
`bench --help` and `frontier --help` list their options. What a run will cost says train.py itself:
`train.py --plan=8xH100` uses plan.py of this room."""

from anyorder.extras.commands import run_one_of

WORDS = {
    'bench': 'texts and updates of any network with random weights, against the plain way',
    'frontier': 'what fewer passes cost a trained model: passes, seconds, nats, samples judged',
}

if __name__ == '__main__':
    run_one_of(globals())
