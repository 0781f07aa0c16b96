"""Curves of runs: what a line is, where it ends, and a picture that is one."""

import json
import resource

import pytest
from conftest import one_line

import anyorder.extras.pictures.__main__ as pictures
from anyorder.machine.terminal import one_line_errors
from configurator import configure

ENTRIES = [
    {'iter': 10, 'tokens': 600, 'loss': 3.0},
    {'iter': 30, 'tokens': 1800, 'loss': 2.0, 'val_any': 2.5},
]
ROWS = [
    {'way': 'fixed', 'passes': 8, 'nats': 2.0},
    {'way': 'fixed', 'passes': 2, 'nats': 3.0},
    {'way': 'margin', 'passes': 8, 'nats': 1.0},
    {'way': 'margin', 'passes': 4, 'nats': None},
]
SOLVED = [{'order': 'random', 'solved': 0.5}, {'order': 'margin', 'solved': 1.0}]


def main(args):
    pictures.main(configure(vars(pictures), [*args]))


def write_log(path, entries, rest=''):
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(entry) + '\n' for entry in entries]
    path.write_text(''.join(lines) + rest)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with runs of two seeds, one without a seed, and JSON files of rows."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(('a_seed1', 'a_seed22', 'b')):
        entries = [entry | {'loss': entry['loss'] + number} for entry in ENTRIES]
        write_log(tmp_path / name / 'log.jsonl', entries, '{"iter": 40, "lo')
    write_log(tmp_path / 'l2r.jsonl', [{'iter': 1, 'tokens': 1, 'val_l2r': 1.0}])
    (tmp_path / 'ways.json').write_text(json.dumps({'config': {}, 'results': ROWS}))
    (tmp_path / 'solved.json').write_text(json.dumps({'results': SOLVED}))
    return tmp_path


BOTH = ('--x=passes', '--y=nats')
BY_ORDER = ('--x=order', '--y=solved')


@pytest.mark.parametrize(
    'args, ends',
    [
        # a line by its name, mean, error, number of runs and place
        (['b', '--y=loss'], ['b 4.0000 1 1800']),
        (['b', 'b/log.jsonl', './b/', '--y=loss'], ['b 4.0000 1 1800']),
        (['b', '--x=iter', '--y=val_any'], ['b 2.5000 1 30']),
        (
            ['a_seed1', 'a_seed22', 'b', '--y=loss', '--labels=_1,$x^$'],
            ['_1 2.5000 0.5000 2 1800', '$x^$ 4.0000 1 1800'],
        ),
        (['b', 'l2r.jsonl', '--y=val_own'], ['b 2.5000 1 1800', 'l2r 1.0000 1 1']),
        (['ways.json', *BOTH, '--by=way'], ['fixed 2.0000 1 8', 'margin 1.0000 1 8']),
        (['solved.json', *BY_ORDER], ['solved 0.5000 1 random', 'solved 1.0000 1 margin']),
    ],
)
def test_a_line_is_a_run_and_ends_in_the_table(runs, capsys, args, ends):
    main(args)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[1:3] == ['mean', 'error']
    assert [' '.join(line.split()) for line in lines[:-2]] == ends
    assert (runs / 'loss.png').read_bytes().startswith(b'\x89PNG')


def test_the_mean_is_of_what_all_runs_have():
    first = [{'iter': 2, 'loss': 1.0}, {'iter': 1, 'loss': 3.0, 'val_any': 9.0}]
    second = [{'iter': 1, 'loss': 5.0}, {'iter': 3, 'loss': 0.0}]
    assert pictures.mean_of([first, second], 'iter', 'loss') == {1: [3.0, 5.0]}
    assert pictures.mean_of([first], 'iter', 'loss') == {1: [3.0], 2: [1.0]}
    assert pictures.mean_of([first, second], 'iter', 'val_any') == {}


@pytest.mark.parametrize(
    'args', [['b', 'l2r.jsonl', '--out=x.svg'], ['ways.json', *BOTH, '--by=way', '--out=x.svg']]
)
def test_a_picture_is_written_through_a_link(runs, args):
    (runs / 'shared').mkdir()
    (runs / 'x.svg').symlink_to('shared/x.svg')
    main(args)
    assert (runs / 'x.svg').is_symlink()
    assert '</svg>' in (runs / 'shared' / 'x.svg').read_text()


def test_a_picture_that_cannot_be_written_is_one_line_and_leaves_the_older_one(runs, forked):
    (runs / 'x.pdf').write_bytes(b'older')

    def plot_on_a_full_disk():  # the kernel refuses what is longer, as it would on a full disk
        with one_line_errors():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            main(['b', '--out=x.pdf'])

    (finished,) = forked(plot_on_a_full_disk)
    assert (finished.code, finished.said.splitlines()[-1][:6]) == (1, 'error:')
    assert (runs / 'x.pdf').read_bytes() == b'older'
    assert not list(runs.glob('*.tmp'))


@pytest.mark.parametrize(
    'args, said',
    [
        (['cut.json'], 'cut.json cannot be read'),
        (['b', '--y=val_l2r'], 'no run has val_l2r by tokens; they have: iter, loss'),
        (['ways.json'], 'they have: nats, passes, way'),
        ([], 'name the runs'),
        (['b', '--labels=x,y'], 'must name 1: b; got x,y'),
        (['b', '--out=x.jpg'], 'x.jpg'),
        (['b', '--out=none/x.png'], 'none/x.png'),
    ],
)
def test_wrong_input_is_one_line(runs, args, said):
    (runs / 'cut.json').write_text('{"results": [')
    with one_line(said):
        main(args)
