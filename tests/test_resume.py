"""A run that goes on: after a stop, a signal, by other options, or from the weights of another."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import REFERENCE, make_model
from toy_runs import TOY, assert_same_runs, interrupted, log, resume, run

import train
from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint, save_checkpoint
from configurator import configure


def test_auto_starts_a_run_and_goes_on_with_it(data, monkeypatch, capsys):
    """The same command each time: stopped before and after its first save, and given once more."""
    options = ['--init_from=auto', '--max_iters=6', '--dropout=0.1', '--eval_interval=100']
    run(*options, '--out_dir=whole')

    def killed():
        raise RuntimeError

    def asked():
        os.kill(os.getpid(), signal.SIGUSR1)

    # nothing is saved; three updates are; one more is lost
    for iteration, act in ((2, killed), (3, asked), (5, killed)):
        with monkeypatch.context() as patch, pytest.raises((SystemExit, RuntimeError)):
            patch.setattr(train, 'update', interrupted(iteration, act))
            run(*options)
    capsys.readouterr()
    run(*options)
    assert 'changed since' not in capsys.readouterr().out
    assert_same_runs('whole', 'out')


def test_a_finished_run_says_so_and_writes_nothing(data, capsys):
    run('--init_from=auto', '--max_iters=6')
    capsys.readouterr()
    before = os.stat('out/ckpt.pt')
    run('--init_from=auto', '--max_iters=6')
    said = capsys.readouterr().out
    assert 'finished: the checkpoint is at iteration 6 of 6' in said
    assert 'any order (bound)' in said
    assert 'plateau' not in said  # which is behind it
    after = os.stat('out/ckpt.pt')
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    'optimizer, iteration, signals',
    [
        ('adamw', 1, [signal.SIGINT]),
        ('muon', 2, [signal.SIGHUP, signal.SIGHUP]),
        ('adamw', 3, [signal.SIGTERM, signal.SIGUSR1]),
    ],
)
def test_a_run_that_is_stopped_is_saved_and_goes_on(
    data, monkeypatch, optimizer, iteration, signals
):
    """The average loss of a log line too, although the run stops in the midst of it."""
    options = [
        '--max_iters=7',
        f'--optimizer={optimizer}',
        '--dropout=0.1',
        '--log_interval=3',
        '--eval_interval=100',
    ]

    def send():
        for number in signals:
            os.kill(os.getpid(), number)

    run(*options, '--out_dir=whole')
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as e:
        patch.setattr(train, 'update', interrupted(iteration - 1, send))
        run(*options)
    signal.signal(signal.SIGHUP, hangup)
    assert e.value.code == 1
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == iteration
    resume()
    assert_same_runs('whole', 'out')


def test_a_run_leaves_the_handlers_of_signals(data):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [*map(signal.getsignal, numbers)]
    run('--max_iters=1')
    assert [*map(signal.getsignal, numbers)] == before


@pytest.mark.parametrize(
    'variant',
    [
        ['--network=layer,rotary'],
        ['--network=sigma_gpt'],
        ['--network=two_stream'],
        ['--order=even.json', '--l2r_ratio=0.5'],
        ['--order=few:3', '--dropout=0.1'],
        ['--order=sorted_subset'],
    ],
)
def test_every_network_and_order_is_trained_saved_and_resumed(data, variant):
    with open('even.json', 'w') as f:
        json.dump([*range(0, 16, 2), *range(1, 16, 2)], f)
    run(*variant, '--max_iters=6', '--out_dir=whole')
    run(*variant, '--max_iters=4', '--lr_decay_iters=6')
    os.remove('even.json')  # the checkpoint knows
    resume('--max_iters=6')
    assert_same_runs('whole', 'out')


@pytest.mark.parametrize('name', ['optimizer=muon:0.02', 'n_layer=3', 'network=rotary'])
def test_a_resume_keeps_optimizer_and_shape(data, name):
    run('--max_iters=1', '--optimizer=adamw', '--network=gate_init=1')
    with pytest.raises(ValueError, match=f'{name} contradicts'):
        run('--max_iters=2', '--optimizer=adamw', '--init_from=resume', f'--{name}')


def test_a_resume_takes_the_options_given_now(data):
    run('--max_iters=4', '--optimizer=adamw')
    run(
        '--max_iters=5',
        '--optimizer=adamw',
        '--init_from=resume',
        '--beta1=0.5',
        '--weight_decay=0.3',
        '--learning_rate=1e-4',
        '--min_lr=1e-5',
        '--dropout=0.2',
    )
    checkpoint = load_checkpoint('out/ckpt.pt')
    matrices, vectors = checkpoint['optimizer'][0]['param_groups']
    assert matrices['betas'][0] == 0.5
    assert matrices['weight_decay'] == 0.3
    assert vectors['weight_decay'] == 0.0
    assert checkpoint['config']['beta1'] == 0.5
    assert checkpoint['config']['dropout'] == 0.2
    assert checkpoint['model_args']['dropout'] == 0.2
    assert log()[-1]['lr'] < 5e-3


def test_weights_alone_are_no_run(data):
    os.makedirs('out')
    model = make_model(vocab_size=320, n_tokens=257)
    save_checkpoint('out/ckpt.pt', model, tokenizer='bytes')
    with pytest.raises(ValueError, match='no run that can be resumed'):
        resume()


def test_tokens_are_counted_when_the_batch_changes(data):
    run('--max_iters=3', '--eval_interval=1')
    run('--max_iters=5', '--init_from=resume', '--batch_size=16')
    assert [entry['tokens'] for entry in log()] == [128, 256, 384, 640, 896]


# what a resume says


@pytest.fixture
def said(data, capsys):
    """said(*options) resumes a run of two updates, and returns what it says."""
    run('--max_iters=2')
    capsys.readouterr()

    def again(*options):
        run('--init_from=resume', *options)
        return capsys.readouterr().out

    return again


def prepare_other(split=None):
    """Prepare the set anew from other text, or one split of it."""
    from anyorder.tokens import prepared as p

    if split:
        p.DATA_SETS['text'] = p.DataSet(None, 'bytes', 0.1, '')
        Path('other.txt').write_text('A third text. ' * 99)
        p.prepare('text', 'data', name='pydocs', split=split, source='other.txt', force=True)
        return
    texts = ['Other text, other text. ' * 30] * 20
    p.DATA_SETS['pydocs'] = p.DataSet(lambda: texts, 'bytes', 0.1, True, '')
    p.prepare('pydocs', 'data', force=True)


def test_a_resume_of_the_same_data_says_nothing(said):
    from anyorder.tokens import prepared as p

    p.prepare('pydocs', 'data', force=True)
    assert 'changed' not in said('--max_iters=2')


def test_a_resume_says_which_options_and_data_are_others(said):
    prepare_other()
    found = said('--max_iters=3', '--batch_size=4')
    options = 'batch_size 8 -> 4, max_iters 2 -> 3'
    data = 'train and val of pydocs'
    assert f'changed since iteration 2: {options}, {data}\n' in found


def test_a_resume_says_which_split_is_another(said):
    prepare_other('val')
    assert 'changed since iteration 2: val of pydocs\n' in said('--max_iters=2')


def test_a_program_with_its_own_update_goes_on_with_itself(data, monkeypatch, capsys):
    """What is printed names it, and a resume by train.py says that this is another one, once."""
    own = SimpleNamespace(__file__=os.path.abspath('own.py'), __spec__=None)
    monkeypatch.setitem(sys.modules, '__main__', own)

    def own_run(iteration, *options):
        stop = interrupted(iteration, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(SystemExit):
            train.train(configure(vars(train), [*TOY, '--max_iters=9', *options]), stop)
        said = capsys.readouterr()
        assert 'with: python own.py --init_from=resume' in said.err
        return said.out

    assert 'changed' not in own_run(1)
    assert 'changed' not in own_run(3, '--init_from=resume')
    assert 'changed' not in own_run(2, '--init_from=out/ckpt.pt', '--out_dir=tuned')
    resume('--max_iters=5')
    assert f'the program {os.getcwd()}/own.py -> train.py\n' in capsys.readouterr().out
    resume('--max_iters=5')
    assert 'the program' not in capsys.readouterr().out
    assert f'the program train.py -> {os.getcwd()}/own.py\n' in own_run(5, '--init_from=auto')


# the weights of another run


def test_weights_want_their_tokenizer(data):
    options = [f'--init_from={REFERENCE}/adaln_small.ckpt.pt', '--device=cpu', '--dtype=float32']
    with pytest.raises(ValueError, match='tokenizer'):
        train.main(configure(vars(train), options))


@pytest.fixture
def average(data):
    """The digest of the average of a run in the folder `first`."""
    run('--max_iters=3', '--out_dir=first')
    return digest(model_from_checkpoint('first/ckpt.pt', 'ema'))


def test_weights_want_their_shape(average):
    with pytest.raises(ValueError, match='n_layer=5 contradicts'):
        run('--init_from=first/ckpt.pt', '--n_layer=5')


@pytest.mark.parametrize('init_from', ['auto:first/ckpt.pt', 'first/ckpt.pt'])
def test_the_average_of_another_run_starts_a_run(average, init_from):
    run(f'--init_from={init_from}', '--max_iters=0')
    assert digest(model_from_checkpoint('out/ckpt.pt', 'raw')) == average


def test_a_run_knows_the_weights_it_started_from(average):
    """A run that is given again needs the file no more."""
    run('--init_from=auto:first/ckpt.pt', '--max_iters=0')
    os.remove('first/ckpt.pt')
    run('--init_from=auto:first/ckpt.pt', '--max_iters=2')
    starts = [{'name': 'ckpt.pt'}]
    config = load_checkpoint('out/ckpt.pt')['config']
    assert config['started_from'] == starts
    assert config['source'] == 'pydocs'
    assert config['init_from'] == 'resume'
    assert log()[0]['environment']['started_from'] == starts
    assert [entry['iter'] for entry in log()] == [1, 2]
    with pytest.raises(ValueError, match='no checkpoint file first/ckpt.pt'):
        run('--init_from=auto:first/ckpt.pt', '--out_dir=other')
