"""Curves of logs: what is on the axes, and a picture that is one."""

import json
import math
import os
import resource

import pytest

import plot
from anyorder.machine.terminal import one_line_errors
from anyorder.pictures.curves import read_all, read_results, read_run
from anyorder.pictures.figures import COLORS, curve, draw, mean_curve, styles
from configurator import configure

ENTRIES = [
    {'iter': 10, 'tokens': 600, 'tokens_per_sec': 5.0, 'loss': 3.0},
    {'iter': 30, 'tokens': 1800, 'tokens_per_sec': 10.0, 'loss': 2.0, 'val_any': 2.5},
]


def main(argv):
    plot.main(configure(vars(plot), argv))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a', 'b'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'log.jsonl').write_text(
            ''.join(json.dumps(e) + '\n' for e in ENTRIES) + '{"iter": 40, "lo'
        )
    return tmp_path


def test_the_axes(runs):
    entries = read_run('a')
    times, losses = curve(entries, 'time', 'loss')
    # 600 / 5 s, then 1200 / 10 s more, in minutes
    assert losses == [3.0, 2.0] and all(map(math.isclose, times, [2.0, 4.0]))
    assert curve(entries, 'tokens', 'val_any') == ([1800], [2.5])


@pytest.mark.parametrize('name, head', [('loss.png', b'\x89PNG'), ('loss.svg', b'<?xml')])
def test_a_picture(runs, name, head, capsys):
    main(['a', 'b/log.jsonl', '-o', name, '--x=time', '--y=loss,val_any', '--labels=AdamW,$x^$'])
    content = (runs / name).read_bytes()
    assert (
        content.startswith(head)
        and len(content) > 5000
        and capsys.readouterr().out.endswith(f'{name} written\n')
    )


def test_a_run_counts_once_and_means_of_unequal_lengths_are_marked(runs, drawn, capsys):
    for seed, entries in (('seed1', ENTRIES), ('seed2', ENTRIES[:1])):
        (runs / f'c_{seed}').mkdir()
        (runs / f'c_{seed}' / 'log.jsonl').write_text(
            ''.join(json.dumps(e) + '\n' for e in entries)
        )
    main(['c_seed1', 'c_seed1/log.jsonl', './c_seed1/', '--y=loss'])
    assert '(' not in capsys.readouterr().out
    main(['c_seed1', 'c_seed2', '--y=loss'])
    assert '2.500 ± 0.500 (2, uneven)' in capsys.readouterr().out


@pytest.fixture
def drawn(monkeypatch):
    """[(panels, path)] of the pictures that plot.main would have drawn."""
    pictures = []
    monkeypatch.setattr(plot, 'draw', lambda runs, panels, path: pictures.append((panels, path)))
    return pictures


def write(path, result):
    path.write_text(json.dumps(result))
    return str(path)


def test_seeds_are_one_line_of_the_table(runs, drawn, capsys):
    for seed, ends in (('a_seed1', (2.0, 1.0)), ('a_seed22', (2.2, 1.0)), ('b_seed1', (3.0, 2.0))):
        entries = [
            {'iter': i, 'tokens': i, 'val_any': v, 'val_l2r': ends[1]}
            for i, v in enumerate((9.0, ends[0]))
        ]
        (runs / f'{seed}.jsonl').write_text(''.join(json.dumps(entry) + '\n' for entry in entries))
    main(['a_seed1.jsonl', 'a_seed22.jsonl', 'b_seed1.jsonl', '--y=val_own,val_l2r'])
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ['val_own', 'val_l2r']
    assert table[1] == ['a', '2.100', '±', '0.100', '(2)', '1.000', '±', '0.000', '(2)']
    assert table[2] == ['b', '3.000', '2.000']


def test_the_same_name_in_two_folders_is_two_runs(runs, drawn, capsys):
    for folder in ('p', 'q'):
        (runs / folder).mkdir()
        (runs / folder / 'x_seed1.jsonl').write_text(''.join(json.dumps(e) + '\n' for e in ENTRIES))
    main(['p/x_seed1.jsonl', 'q/x_seed1.jsonl', '--y=loss'])
    assert [line.split()[:1] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        ['p/x'],
        ['q/x'],
    ]


def test_its_own_order_is_what_a_run_was_trained_in(runs):
    (runs / 'c.jsonl').write_text(
        '{"iter": 1, "val_l2r": 1.0, "val_own": 2.0}\n{"iter": 2, "val_l2r": 1.5}\n'
        '{"iter": 3, "loss": 1.0}\n'
    )
    assert [e.get('val_own') for e in read_run('c.jsonl')] == [2.0, 1.5, None] and read_run('a')[1][
        'val_own'
    ] == 2.5


def result(estimate, nats, dataset='books'):
    return {'dataset': dataset, 'estimate': estimate, 'nats_per_token': nats}


def test_ensembles_and_generation_are_read_from_json(runs, capsys):
    ensemble = [result(f'ensemble x {m}', 3 - m / 10) for m in (1, 2, 4)]
    accuracy = {'dataset': 'books', 'estimate': 'last word', 'accuracy': 0.5}
    decoder = write(
        runs / 'd_seed1.json', {'results': [result('left to right', 2), *ensemble, accuracy]}
    )
    encoder = write(runs / 'e_seed1.json', {'results': [result('any order x 4', 2.5)]})
    rows = [{'steps': n, 'decoder': n / 4, 'encoder': n / 2} for n in (4, 8)]
    grid, other = (write(runs / name, {'generation': rows}) for name in ('grid.json', 'other.json'))
    of_members = [{'members': m, 'nats': 3 - m / 10} for m in (1, 2, 4)]
    assert read_results('d_seed1.json') == {
        'books': [*of_members, {'order': 'left to right', 'nats': 2}]
    }
    assert read_results('e_seed1.json') == {
        'books': [{'members': 1, 'nats': 2.5}, {'order': 'any order', 'nats': 2.5}]
    }
    assert read_results('grid.json')['encoder'] == [
        {'steps': 4, 'seconds': 2.0},
        {'steps': 8, 'seconds': 4.0},
    ]
    two = write(runs / 'two.json', {'results': [*ensemble, result('any order x 4', 9, 'ptb')]})
    assert read_results('two.json') == {
        'books': of_members,
        'ptb': [{'members': 1, 'nats': 9}, {'order': 'any order', 'nats': 9}],
    }
    for paths in ([decoder, encoder], [two], [grid, other]):
        main([*paths, '-o', 'picture.png'])
    said = capsys.readouterr().out.splitlines()
    assert (
        said[1].split() == ['d', '2.600']
        and said[2].split() == ['e', '2.500']
        and '±' not in ''.join(said)
    )


def test_a_text_that_is_cut_off_has_no_place_in_a_picture(runs):
    write(
        runs / 'd.json',
        {'results': [result('left to right', None) | {'cut': 3.0}, result('any order x 1', 2.0)]},
    )
    assert [e['nats'] for e in read_results('d.json')['books']] == [2.0, 2.0]


def test_nats_are_drawn_by_the_order(runs, drawn, capsys):
    for name, nats in (('d_seed1', (1.0, 2.0)), ('d_seed2', (1.5, 2.5)), ('e_seed1', (3.0,))):
        rows = [result(order, n) for order, n in zip(('any order x 2', 'left to right'), nats)]
        write(runs / f'{name}.json', {'results': [*rows, result('iw x 2', 9.0)]})
    paths = [f'{name}.json' for name in ('d_seed1', 'd_seed2', 'e_seed1')]
    main(paths)
    assert drawn == [([('order', 'nats')], 'loss.png')]
    said = [' '.join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[:3] == [
        'any order left to right',
        'd 1.250 ± 0.250 (2) 2.250 ± 0.250 (2)',
        'e 3.000',
    ]
    (axis,) = draw(read_all(paths), [('order', 'nats')], 'x.png').axes
    mean, other = axis.lines
    assert list(mean.get_xdata()) == ['any order', 'left to right'] and list(mean.get_ydata()) == [
        1.25,
        2.25,
    ]
    assert list(other.get_ydata()) == [3.0]
    main([*paths, '--x=members'])
    assert drawn[1:] == [([('members', 'nats')], 'loss.png')]


def solved(name, share, slots, seconds, policies=('random', 'margin')):
    rows = [
        {
            'policy': policy,
            'n_steps': 0,
            'noise': n / 2,
            'solved': share + n / 4,
            'solved_stderr': 0.125,
            'right': 0.75,
            'right_stderr': 0.25,
            'slots': slots,
            'seconds': seconds,
            'puzzles': 9,
        }
        for n, policy in enumerate(policies)
    ]
    return write(name, {'set': 'sudoku (test)', 'results': rows})


def test_solved_puzzles_are_drawn_by_what_they_cost(runs, drawn, capsys):
    """Seeds have the same slots and other seconds: they are one point still."""
    paths = [
        solved(runs / 'd_seed1.json', 0.25, 1702, 1.0),
        solved(runs / 'd_seed2.json', 0.5, 1702, 2.0),
        solved(runs / 'e_seed1.json', 0.5, 4000, 4.0),
    ]
    point = {
        'n_steps': 0,
        'solved': 0.25,
        'solved_error': 0.125,
        'right': 0.75,
        'right_error': 0.25,
        'slots': 1702,
        'puzzle_seconds': 1.0,
    }
    assert read_results(paths[0]) == {
        'random': [point],
        'margin, noise 0.5': [point | {'solved': 0.5}],
    }
    main([*paths, '--labels=decoder,encoder'])
    assert drawn == [([('slots', 'solved'), ('puzzle_seconds', 'solved')], 'loss.png')]
    said = [' '.join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[:2] == [
        'solved right slots puzzle_seconds',
        'decoder: random 0.375 ± 0.125 (2) 0.750 ± 0.000 (2) 1702 ± 0 (2) 1.500 ± 0.500 (2)',
    ]
    assert [line.partition(' 0')[0] for line in said[2:5]] == [
        'decoder: margin, noise',
        'encoder: random',
        'encoder: margin, noise',
    ]
    runs = read_all(paths, ['decoder', 'encoder'])
    first, axis = draw(runs, [('slots', 'solved'), ('puzzle_seconds', 'solved')], 'x.png').axes
    assert first.get_xlabel() == 'slots a puzzle'
    assert [
        (*line.get_xdata(), *line.get_ydata()) for line in axis.lines if line.get_marker() in 'os'
    ] == [(1.5, 0.375), (1.5, 0.625), (4.0, 0.5), (4.0, 0.75)]
    bars = [bar.get_segments()[0][:, 1].tolist() for bar in axis.collections]
    assert bars == [
        [0.25, 0.5],
        [0.5, 0.75],
        [0.375, 0.625],
        [0.625, 0.875],
    ]  # over seeds, then over puzzles


def points(**ways):
    """What bench.py frontier writes: NAME=[(passes, seconds, nats), ...], one_token is the measure of all."""
    return {
        'reference': 'one_token',
        'frontier': [
            {
                'way': way.replace('_at', ' threshold'),
                'setting': {'n_steps': 4},
                'passes': passes,
                'seconds': seconds,
                'judge_nats': nats,
                'judge_nats_error': 0.25,
                'entropy': 2.0,
            }
            for way, found in ways.items()
            for passes, seconds, nats in found
        ],
    }


def test_a_frontier_is_read_and_drawn_by_ways(runs, drawn, capsys):
    name = write(
        runs / 'f.json', points(one_token=[(8, 4.0, 2.5)], fixed=[(4, 2.0, 2.75), (2, 1.0, 3.0)])
    )
    found = read_results(name)
    assert [entry['passes'] for entry in found['fixed']] == [2, 4] and list(found) == [
        'one_token',
        'fixed',
    ]
    assert found['one_token'] == [
        {
            'level': 1,
            'setting': {'n_steps': 4},
            'passes': 8,
            'seconds': 4.0,
            'judge_nats': 2.5,
            'judge_nats_error': 0.25,
            'entropy': 2.0,
        }
    ]
    panels = [('passes', 'judge_nats'), ('seconds', 'judge_nats'), ('passes', 'entropy')]
    for args, want in (
        ([], panels),
        (['--x=seconds'], [('seconds', 'judge_nats'), ('seconds', 'entropy')]),
        (['--y=passes', '--x=seconds'], [('seconds', 'passes')]),
    ):
        main([name, '-o', 'x.png', *args])
        assert drawn.pop() == (want, 'x.png')
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert said[0] == ['judge_nats', 'entropy'] and said[1:3] == [
        ['one_token', '2.500', '2.000'],
        ['fixed', '2.750', '2.000'],
    ]  # at the most passes


def test_seeds_whose_passes_differ_are_a_mean_by_setting(runs, capsys):
    names = [
        write(
            runs / f'f_seed{i}.json',
            points(one_token=[(8, 4.0, 2.5)], lossless=[(passes, 2.0, nats)]),
        )
        for i, (passes, nats) in enumerate([(3.0, 2.5), (3.5, 2.75)])
    ]
    main([*names, '-o', 'x.png', '--labels=one,lossless'])
    assert '2.625 ± 0.125 (2)' in capsys.readouterr().out  # not uneven


def test_numbers_of_steps_are_drawn_in_their_order(runs, capsys):
    rows = [
        {
            'policy': 'margin',
            'noise': 0,
            'n_steps': n,
            'solved': solved,
            'right': solved,
            'solved_stderr': 0.1,
            'right_stderr': 0.1,
            'slots': slots,
            'seconds': 1.0,
        }
        for n, solved, slots in ((0, 0.9, 900), (2, 0.1, 100), (16, 0.5, 500))
    ]  # 0 is a step for each blank
    (found,) = read_results(write(runs / 'p.json', {'set': 'x', 'results': rows})).values()
    assert [entry['slots'] for entry in found] == [100, 500, 900]
    found = read_results(
        write(runs / 'g.json', {'generation': [{'steps': n, 'decoder': n / 8} for n in (64, 16)]})
    )
    assert [entry['steps'] for entry in found['decoder']] == [16, 64]


def test_a_frontier_with_nats_is_drawn_by_them(runs, drawn):
    def exact(**ways):
        result = points(**ways)
        for point in result['frontier']:
            point |= {'nats': 2.0, 'nats_error': 0.1, 'cost': 0.5, 'cost_error': None, 'slots': 1.5}
        return result

    new = write(
        runs / 'new.json',
        exact(one_token=[(8, 4.0, 2.5)], margin=[(8, 3.0, 2.0)], fixed=[(2, 1.0, 3.0)]),
    )
    old = write(runs / 'old.json', points(one_token=[(8, 4.0, 2.5)]))
    main([new])
    assert drawn.pop()[0] == [('passes', 'nats'), ('slots', 'nats'), ('seconds', 'nats')]
    assert 'cost_error' not in read_results(new)['fixed'][0]  # of a single block
    main([new, '--y=judge_nats,entropy'])
    assert drawn.pop()[0] == [('passes', 'judge_nats'), ('passes', 'entropy')]
    main([new, old])
    assert drawn.pop()[0][0] == ('passes', 'judge_nats')
    assert (
        len(draw(read_all([new, old]), [('slots', 'nats')], 'x.png').axes) == 1
    )  # the older one has none
    (axis,) = draw(read_all([new]), [('slots', 'nats')], 'x.png').axes
    assert (axis.get_title('left'), axis.get_xlabel()) == ('held-out text', 'slots a token')


def test_a_policy_has_one_colour_whatever_its_blocks():
    ways = (
        'one_token',
        'margin',
        'fixed',
        'margin threshold',
        'margin blocks of 8',
        'margin blocks of 32',
    )
    found = styles({way: [[{'level': 1} if way == 'one_token' else {}]] for way in ways})
    margin, fixed, threshold, *blocks = (found[way] for way in ways[1:])
    assert {margin['color']} == {x['color'] for x in (threshold, *blocks)} != {fixed['color']}
    assert threshold == margin | {'markerfacecolor': 'white'}
    assert [x['linestyle'] for x in (margin, fixed, *blocks)] == ['-', '-', '--', '--']
    assert len({x['marker'] for x in (margin, fixed, *blocks)}) == 4


def test_each_number_has_its_own_error(runs):
    row = result('ensemble x 2', 3.0) | {'stderr': 0.5, 'gain': 0.25, 'gain_stderr': 0.125}
    write(runs / 'd.json', {'results': [row, row | {'estimate': 'ensemble x 4', 'stderr': None}]})
    two = {'members': 2, 'nats': 3.0, 'nats_error': 0.5, 'gain': 0.25, 'gain_error': 0.125}
    assert read_results('d.json') == {
        'books': [two, {k: v for k, v in (two | {'members': 4}).items() if k != 'nats_error'}]
    }


def test_seeds_are_averaged_within_a_data_set(runs, drawn, capsys):
    for seed, data, nats in (1, 'books', 2), (2, 'books', 3), (3, 'texts/ptb.txt', 9):
        write(runs / f'd_seed{seed}.json', {'results': [result('any order x 4', nats, data)]})
    main([*(f'd_seed{seed}.json' for seed in (1, 2, 3)), '-o', 'picture.png'])
    said = capsys.readouterr().out.splitlines()
    assert [' '.join(line.split()) for line in said[1:3]] == [
        'books 2.500 ± 0.500 (2)',
        'ptb.txt 9.000',
    ]


def test_lines_have_the_colour_of_their_label(runs):
    logs = [('a', read_run('a')), ('b', read_run('b')), ('a', read_run('a'))]
    lines = draw(logs, [('tokens', 'loss')], 'x.png').axes[0].lines
    assert [line.get_color() for line in lines] == list(COLORS[:2])
    assert [len(line.get_xdata()) for line in lines] == [2, 2]
    many = (
        draw([(str(i), read_run('a')) for i in range(9)], [('tokens', 'loss')], 'x.png')
        .axes[0]
        .lines
    )
    assert len({(line.get_color(), line.get_linestyle()) for line in many}) == 9


@pytest.mark.parametrize('length', [8, 45])
def test_a_legend_is_not_wider_than_its_figure(runs, length):
    panels = [('tokens', 'loss'), ('tokens', 'val_any')]
    figure = draw([(f'{i}' * length, read_run('a')) for i in range(6)], panels, 'x.png')
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_picture_is_written_through_a_link(runs):
    (runs / 'shared').mkdir()
    (runs / 'x.svg').symlink_to('shared/x.svg')
    main(['a', '-o', 'x.svg'])
    assert (runs / 'x.svg').is_symlink() and os.listdir('shared') == ['x.svg']


def test_a_label_that_begins_with_an_underscore_has_its_entry(runs):
    labels = ['_first', 'second', '__', '_nolegend_', '_: margin']
    figure = draw([(label, read_run('a')) for label in labels], [('tokens', 'loss')], 'x.png')
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels


def test_runs_of_a_label_are_their_mean_and_a_band():
    group = [
        [
            {'iter': 1, 'time': 2.0, 'loss': 3.0},
            {'iter': 2, 'time': 4.0, 'loss': 1.0, 'val_any': 9.0},
        ],
        [{'iter': 1, 'time': 4.0, 'loss': 5.0}, {'iter': 2, 'time': 5.0, 'loss': 1.5}],
    ]
    assert mean_curve(group, 'time', 'loss') == ([3.0, 4.5], [4.0, 1.25], [3.0, 1.0], [5.0, 1.5])
    assert (
        mean_curve(group, 'time', 'val_any') is None
        and mean_curve(group[:1], 'time', 'loss') is None
    )  # not of all
    group[1][1]['iter'] = 3
    assert mean_curve(group, 'time', 'loss') is None  # other updates: each by itself


def test_bands_show_seeds_and_bars_show_errors(runs):
    ensemble = [{'members': m, 'nats': 3 - m / 10, 'nats_error': m / 100} for m in (1, 2, 4)]
    other = [entry | {'nats': entry['nats'] + 0.2} for entry in ensemble]
    level = [('e', [{'members': 1, 'nats': 2.5, 'nats_error': 0.1}])]
    figure = draw([('d', ensemble), *level], [('members', 'nats')], 'x.svg')
    bars = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert [(round(b[0, 1], 9), round(b[1, 1], 9)) for b in bars] == [
        (2.89, 2.91),
        (2.78, 2.82),
        (2.56, 2.64),
    ]
    assert figure.legends[0].get_title().get_text() == 'bars and bands: standard error'
    assert figure.axes[0].patches[0].get_y() == pytest.approx(2.4)
    assert figure.axes[0].patches[0].get_height() == pytest.approx(0.2)
    figure = draw([('d', ensemble), ('d', other)], [('members', 'nats')], 'x.svg')
    (band,) = figure.axes[0].collections
    assert sorted({round(float(y), 9) for y in band.get_paths()[0].vertices[:, 1]}) == [
        2.6,
        2.8,
        2.9,
        3.0,
        3.1,
    ]
    assert (
        figure.axes[0].lines[0].get_ydata() == pytest.approx([3.0, 2.9, 2.7])
        and len(figure.axes[0].lines) == 1
    )
    assert 'from the least to the greatest' in figure.legends[0].get_title().get_text()


def test_a_picture_that_cannot_be_written_is_one_line_and_leaves_the_older_one(runs, forked):
    (runs / 'x.pdf').write_bytes(b'older')

    def plot_on_a_full_disk():  # the kernel refuses what is longer, as it would on a full disk
        with one_line_errors():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            main(['a', '-o', 'x.pdf'])

    (finished,) = forked(plot_on_a_full_disk)
    assert (finished.code, finished.said) == (1, "error: [Errno 27] File too large: 'x.pdf'\n")
    assert (runs / 'x.pdf').read_bytes() == b'older' and not list(runs.glob('*.tmp'))


@pytest.mark.parametrize(
    'last, panels',
    [
        ({'val_own': 1.0, 'val_l2r': 2.0}, ['val_own', 'val_l2r']),
        ({'val_any': 1.0}, ['val_any']),
        ({'val_l2r': 1.0}, ['val_own', 'val_l2r']),
        ({'val_any': 1.0, 'val_l2r': 1.0}, ['val_any', 'val_l2r']),
    ],
)
def test_a_run_of_any_kind_is_drawn_without_options(runs, drawn, capsys, last, panels):
    (runs / 'c.jsonl').write_text(json.dumps({'iter': 1, 'tokens': 3, 'loss': 1.0, **last}) + '\n')
    main(['c.jsonl'])
    assert drawn == [([('tokens', y) for y in ('loss', *panels)], 'loss.png')]
    assert capsys.readouterr().out.split()[: len(panels) + 1] == ['loss', *panels]


@pytest.mark.parametrize(
    'args, said',
    [
        (['c'], 'no log c'),
        (['x.json'], 'x.json cannot be read'),
        (['word.json'], 'neither'),
        (['cut.json'], 'cut.json cannot be read'),
        (['nan.json'], 'nan.json cannot be read'),
        (['large.json'], 'large.json cannot be read'),
        (['map.json'], 'neither'),
        (
            ['null.json'],
            'null.json cannot be read as the JSON file of a result: name what eval_ppl.py',
        ),
        (['frontier.json', 'e.json'], 'of one kind'),
        (['none.json'], 'nor times of generation'),
        (['null.jsonl'], 'line 1 of null.jsonl is no entry'),
        (['a', 'e.json'], 'of one kind'),
        (['a', '--y=val_l2r'], 'no run has val_l2r by tokens; they have: iter, loss'),
        ([], 'name the runs'),
        (['a', '-p', 'x.png'], 'no option -p'),
        (['a', '-o'], 'out needs a value'),
        (['a', '--x=loss'], 'x must be tokens'),
        (['a', '--labels=x,y'], 'must name 1: a; got 2'),
        (['a', '-o', 'x.jpg'], 'x.jpg'),
        (['a', '-o', 'none/x.png'], 'none/x.png'),
    ],
)
def test_wrong_input_is_one_line(runs, args, said):
    write(runs / 'x.json', [])
    write(
        runs / 'word.json',
        {'results': [{'dataset': 'books', 'estimate': 'last word', 'accuracy': 0.5}]},
    )
    write(runs / 'map.json', {'set': 'coins', 'results': [{'masked': 0.5, 'latents': 0.7}]})
    write(runs / 'e.json', {'results': [result('any order x 1', 2)]})
    write(runs / 'null.json', {'results': [result('any order x 1', None)]})
    (runs / 'null.jsonl').write_text('{"iter": 1, "loss": null}\n')
    write(runs / 'nan.json', {'results': [result('any order x 1', math.nan)]})
    write(runs / 'large.json', {'generation': [{'steps': 4, 'decoder': 10**400, 'encoder': 1}]})
    (runs / 'cut.json').write_text((runs / 'e.json').read_text()[:-3])
    write(runs / 'none.json', {'generation': []})
    write(runs / 'frontier.json', points(fixed=[(1, 1.0, 2.5)]))
    with pytest.raises(ValueError, match=said):
        main(args)
