"""Curves of logs: what is on the axes, and a picture that is one."""

import json
import math
import os
import resource

import pytest

import anyorder.extras.pictures.__main__ as plot
from anyorder.extras.pictures.curves import read_all, read_results, read_run
from anyorder.extras.pictures.figures import COLORS, curve, draw, mean_curve, styles
from anyorder.machine.terminal import one_line_errors
from configurator import configure

ENTRIES = [
    {'iter': 10, 'tokens': 600, 'tokens_per_sec': 5.0, 'loss': 3.0},
    {'iter': 30, 'tokens': 1800, 'tokens_per_sec': 10.0, 'loss': 2.0, 'val_any': 2.5},
]


def main(argv):
    plot.main(configure(vars(plot), argv))


def write(path, result):
    path.write_text(json.dumps(result))
    return str(path)


def write_log(path, entries, rest=''):
    lines = [json.dumps(entry) + '\n' for entry in entries]
    path.write_text(''.join(lines) + rest)


def words(line):
    """A line without the blanks that align it."""
    return ' '.join(line.split())


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with the runs a and b, whose logs are cut off."""
    monkeypatch.chdir(tmp_path)
    for name in ('a', 'b'):
        (tmp_path / name).mkdir()
        write_log(tmp_path / name / 'log.jsonl', ENTRIES, '{"iter": 40, "lo')
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """[(panels, path)] of the pictures that plot.main would have drawn."""
    pictures = []
    monkeypatch.setattr(plot, 'draw', lambda runs, panels, path: pictures.append((panels, path)))
    return pictures


@pytest.fixture
def table(capsys):
    """table(*args) runs the command and returns the lines of its table."""

    def run(*args):
        main(args)
        said, _, _ = capsys.readouterr().out.rpartition('\n\n')
        return list(map(words, said.splitlines()))

    return run


# --------------------------------------------------------------------------------------------------
# logs


def test_the_axes(runs):
    entries = read_run('a')
    times, losses = curve(entries, 'time', 'loss')
    assert losses == [3.0, 2.0]
    assert times == pytest.approx([2.0, 4.0])  # 600 / 5 s, then 1200 / 10 s more, in minutes
    assert curve(entries, 'tokens', 'val_any') == ([1800], [2.5])


@pytest.mark.parametrize('name, head', [('loss.png', b'\x89PNG'), ('loss.svg', b'<?xml')])
def test_a_picture(runs, name, head, capsys):
    main(['a', 'b/log.jsonl', '-o', name, '--x=time', '--y=loss,val_any', '--labels=AdamW,$x^$'])
    content = (runs / name).read_bytes()
    assert content.startswith(head)
    assert len(content) > 5000
    assert capsys.readouterr().out.endswith(f'{name} written\n')


def test_a_run_counts_once(runs, drawn, table):
    said = table('a', 'a/log.jsonl', './a/', '--y=loss')
    assert said == ['loss', 'a 2.000']


def test_means_of_unequal_lengths_are_marked(runs, drawn, table):
    write_log(runs / 'c_seed1.jsonl', ENTRIES)
    write_log(runs / 'c_seed2.jsonl', ENTRIES[:1])
    said = table('c_seed1.jsonl', 'c_seed2.jsonl', '--y=loss')
    assert said == ['loss', 'c 2.500 ± 0.500 (2, uneven)']


def test_seeds_are_one_line_of_the_table(runs, drawn, table):
    for name, val_any, val_l2r in (('a_seed1', 2.0, 1), ('a_seed22', 2.2, 1), ('b_seed1', 3, 2)):
        last = {'iter': 1, 'tokens': 1, 'val_any': val_any, 'val_l2r': val_l2r}
        first = last | {'iter': 0, 'tokens': 0, 'val_any': 9.0}
        write_log(runs / f'{name}.jsonl', [first, last])
    said = table('a_seed1.jsonl', 'a_seed22.jsonl', 'b_seed1.jsonl', '--y=val_own,val_l2r')
    assert said[0] == 'val_own val_l2r'
    assert said[1] == 'a 2.100 ± 0.100 (2) 1.000 ± 0.000 (2)'
    assert said[2] == 'b 3.000 2.000'


def test_the_same_name_in_two_folders_is_two_runs(runs, drawn, table):
    for folder in ('p', 'q'):
        (runs / folder).mkdir()
        write_log(runs / folder / 'x_seed1.jsonl', ENTRIES)
    said = table('p/x_seed1.jsonl', 'q/x_seed1.jsonl', '--y=loss')
    assert said == ['loss', 'p/x 2.000', 'q/x 2.000']


def test_its_own_order_is_what_a_run_was_trained_in(runs):
    own = {'iter': 1, 'val_l2r': 1.0, 'val_own': 2.0}
    write_log(runs / 'c.jsonl', [own, {'iter': 2, 'val_l2r': 1.5}, {'iter': 3, 'loss': 1.0}])
    assert [entry.get('val_own') for entry in read_run('c.jsonl')] == [2.0, 1.5, None]
    assert read_run('a')[1]['val_own'] == 2.5


@pytest.mark.parametrize(
    'last, panels',
    [
        ({'val_own': 1.0, 'val_l2r': 2.0}, ['val_own', 'val_l2r']),
        ({'val_any': 1.0}, ['val_any']),
        ({'val_l2r': 1.0}, ['val_own', 'val_l2r']),
        ({'val_any': 1.0, 'val_l2r': 1.0}, ['val_any', 'val_l2r']),
    ],
)
def test_a_run_of_any_kind_is_drawn_without_options(runs, drawn, table, last, panels):
    write_log(runs / 'c.jsonl', [{'iter': 1, 'tokens': 3, 'loss': 1.0, **last}])
    said = table('c.jsonl')
    assert drawn == [([('tokens', y) for y in ('loss', *panels)], 'loss.png')]
    assert said[0].split() == ['loss', *panels]


# --------------------------------------------------------------------------------------------------
# likelihoods


def result(estimate, nats, dataset='books'):
    return {'dataset': dataset, 'estimate': estimate, 'nats_per_token': nats}


ENSEMBLE = [result('ensemble x 1', 2.9), result('ensemble x 2', 2.8), result('ensemble x 4', 2.6)]
OF_MEMBERS = [{'members': 1, 'nats': 2.9}, {'members': 2, 'nats': 2.8}, {'members': 4, 'nats': 2.6}]
ACCURACY = {'dataset': 'books', 'estimate': 'last word', 'accuracy': 0.5}


def test_an_ensemble_is_read_by_members_and_orders(runs):
    path = write(runs / 'd.json', {'results': [result('left to right', 2), *ENSEMBLE, ACCURACY]})
    assert read_results(path) == {'books': [*OF_MEMBERS, {'order': 'left to right', 'nats': 2}]}


def test_a_bound_stands_as_one_member(runs):
    path = write(runs / 'e.json', {'results': [result('any order x 4', 2.5)]})
    bound = [{'members': 1, 'nats': 2.5}, {'order': 'any order', 'nats': 2.5}]
    assert read_results(path) == {'books': bound}


def test_every_data_set_has_its_entries(runs):
    path = write(runs / 'two.json', {'results': [*ENSEMBLE, result('any order x 4', 9, 'ptb')]})
    bound = [{'members': 1, 'nats': 9}, {'order': 'any order', 'nats': 9}]
    assert read_results(path) == {'books': OF_MEMBERS, 'ptb': bound}


def test_an_ensemble_is_drawn_beside_a_bound(runs, table):
    decoder = write(runs / 'd_seed1.json', {'results': [*ENSEMBLE, ACCURACY]})
    encoder = write(runs / 'e_seed1.json', {'results': [result('any order x 4', 2.5)]})
    said = table(decoder, encoder, '-o', 'picture.png')
    assert said == ['nats', 'd 2.600', 'e 2.500']


def test_a_text_that_is_cut_off_has_no_place_in_a_picture(runs):
    cut = result('left to right', None) | {'cut': 3.0}
    write(runs / 'd.json', {'results': [cut, result('any order x 1', 2.0)]})
    assert [entry['nats'] for entry in read_results('d.json')['books']] == [2.0, 2.0]


@pytest.fixture
def by_order(runs):
    """The paths of three files of nats by order."""
    paths = []
    for name, nats in (('d_seed1', (1.0, 2.0)), ('d_seed2', (1.5, 2.5)), ('e_seed1', (3.0,))):
        rows = [result(order, n) for order, n in zip(('any order x 2', 'left to right'), nats)]
        rows.append(result('iw x 2', 9.0))
        paths.append(write(runs / f'{name}.json', {'results': rows}))
    return paths


def test_nats_are_printed_by_the_order(by_order, drawn, table):
    said = table(*by_order)
    assert drawn == [([('order', 'nats')], 'loss.png')]
    assert said == ['any order left to right', 'd 1.250 ± 0.250 (2) 2.250 ± 0.250 (2)', 'e 3.000']


def test_nats_are_drawn_by_the_order(by_order):
    (axis,) = draw(read_all(by_order), [('order', 'nats')], 'x.png').axes
    mean, other = axis.lines
    assert list(mean.get_xdata()) == ['any order', 'left to right']
    assert list(mean.get_ydata()) == [1.25, 2.25]
    assert list(other.get_ydata()) == [3.0]


def test_the_axis_may_be_chosen(by_order, drawn):
    main([*by_order, '--x=members'])
    assert drawn == [([('members', 'nats')], 'loss.png')]


def test_each_number_has_its_own_error(runs):
    row = result('ensemble x 2', 3.0) | {'stderr': 0.5, 'gain': 0.25, 'gain_stderr': 0.125}
    write(runs / 'd.json', {'results': [row, row | {'estimate': 'ensemble x 4', 'stderr': None}]})
    numbers = {'nats': 3.0, 'gain': 0.25, 'gain_error': 0.125}
    two, four = read_results('d.json')['books']
    assert two == numbers | {'members': 2, 'nats_error': 0.5}
    assert four == numbers | {'members': 4}


def test_seeds_are_averaged_within_a_data_set(runs, drawn, table):
    paths = []
    for seed, data, nats in ((1, 'books', 2), (2, 'books', 3), (3, 'texts/ptb.txt', 9)):
        rows = [result('any order x 4', nats, data)]
        paths.append(write(runs / f'd_seed{seed}.json', {'results': rows}))
    assert table(*paths)[1:] == ['books 2.500 ± 0.500 (2)', 'ptb.txt 9.000']


# --------------------------------------------------------------------------------------------------
# puzzles


def solved(path, share, slots, seconds):
    """A file in which random solves `share` of the puzzles, margin with noise a quarter more."""
    row = {'n_steps': 0, 'solved_stderr': 0.125, 'right': 0.75, 'right_stderr': 0.25, 'puzzles': 9}
    row |= {'slots': slots, 'seconds': seconds}
    random = row | {'order': 'random', 'solved': share}
    margin = row | {'order': 'margin', 'solved': share + 0.25}
    return write(path, {'set': 'sudoku (test)', 'results': [random, margin]})


@pytest.fixture
def solved_by_two(runs):
    """The paths of two runs of a decoder, which differ in seconds, and of one of an encoder."""
    return [
        solved(runs / 'd_seed1.json', 0.25, 1702, 1.0),
        solved(runs / 'd_seed2.json', 0.5, 1702, 2.0),
        solved(runs / 'e_seed1.json', 0.5, 4000, 4.0),
    ]


BY_COST = [('slots', 'solved'), ('puzzle_seconds', 'solved')]


def test_solved_puzzles_are_read_by_order(solved_by_two):
    point = {'n_steps': 0, 'slots': 1702, 'puzzle_seconds': 1.0}
    point |= {'solved': 0.25, 'solved_error': 0.125, 'right': 0.75, 'right_error': 0.25}
    margin = point | {'solved': 0.5}
    assert read_results(solved_by_two[0]) == {'random': [point], 'margin': [margin]}


def test_solved_puzzles_are_printed_with_what_they_cost(solved_by_two, drawn, table):
    said = table(*solved_by_two, '--labels=decoder,encoder')
    assert drawn == [(BY_COST, 'loss.png')]
    assert said[0] == 'solved right slots puzzle_seconds'
    random = 'decoder: random 0.375 ± 0.125 (2) 0.750 ± 0.000 (2) 1702 ± 0 (2) 1.500 ± 0.500 (2)'
    assert said[1] == random
    names = [line.partition(' 0')[0] for line in said[2:]]
    assert names == ['decoder: margin', 'encoder: random', 'encoder: margin']


def test_seeds_with_other_seconds_are_one_point_still(solved_by_two):
    runs = read_all(solved_by_two, ['decoder', 'encoder'])
    first, axis = draw(runs, BY_COST, 'x.png').axes
    assert first.get_xlabel() == 'slots a puzzle'
    lines = [line for line in axis.lines if line.get_marker() in 'os']
    points = [(*line.get_xdata(), *line.get_ydata()) for line in lines]
    assert points == [(1.5, 0.375), (1.5, 0.625), (4.0, 0.5), (4.0, 0.75)]
    bars = [bar.get_segments()[0][:, 1].tolist() for bar in axis.collections]
    assert bars[:2] == [[0.25, 0.5], [0.5, 0.75]]  # over seeds
    assert bars[2:] == [[0.375, 0.625], [0.625, 0.875]]  # over puzzles


def test_numbers_of_steps_are_read_in_their_order(runs):
    rows = []
    for n_steps, slots in ((0, 900), (2, 100), (16, 500)):  # 0 is a step for each blank
        row = {'order': 'margin', 'n_steps': n_steps, 'slots': slots, 'seconds': 1.0}
        rows.append(row | dict.fromkeys(('solved', 'right', 'solved_stderr', 'right_stderr'), 0.1))
    path = write(runs / 'p.json', {'set': 'x', 'results': rows})
    assert [entry['slots'] for entry in read_results(path)['margin']] == [100, 500, 900]


# --------------------------------------------------------------------------------------------------
# generation, and the frontier


def test_generation_is_read_by_network_in_the_order_of_steps(runs):
    rows = [{'steps': n, 'decoder': n / 4, 'encoder': n / 2} for n in (8, 4)]
    path = write(runs / 'grid.json', {'generation': rows})
    found = read_results(path)
    assert list(found) == ['decoder', 'encoder']
    assert found['encoder'] == [{'steps': 4, 'seconds': 2.0}, {'steps': 8, 'seconds': 4.0}]
    main([path, '-o', 'picture.png'])


def points(**ways):
    """What speed frontier writes: NAME=[(passes, seconds, nats), ...].

    one_token is the measure of all."""
    found = []
    for way, rows in ways.items():
        for passes, seconds, nats in rows:
            point = {'way': way, 'setting': {'n_steps': 4}, 'passes': passes, 'seconds': seconds}
            found.append(point | {'judge_nats': nats, 'judge_nats_error': 0.25, 'entropy': 2.0})
    return {'reference': 'one_token', 'frontier': found}


ONE_TOKEN = [(8, 4.0, 2.5)]


@pytest.fixture
def two_ways(runs):
    return write(runs / 'f.json', points(one_token=ONE_TOKEN, fixed=[(4, 2, 2.75), (2, 1, 3.0)]))


def test_a_frontier_is_read_by_ways(two_ways):
    found = read_results(two_ways)
    assert list(found) == ['one_token', 'fixed']
    assert [entry['passes'] for entry in found['fixed']] == [2, 4]
    numbers = {'passes': 8, 'seconds': 4.0, 'judge_nats': 2.5, 'judge_nats_error': 0.25}
    whole = numbers | {'level': 1, 'setting': {'n_steps': 4}, 'entropy': 2.0}
    assert found['one_token'] == [whole]


@pytest.mark.parametrize(
    'args, panels',
    [
        ([], [('passes', 'judge_nats'), ('seconds', 'judge_nats'), ('passes', 'entropy')]),
        (['--x=seconds'], [('seconds', 'judge_nats'), ('seconds', 'entropy')]),
        (['--y=passes', '--x=seconds'], [('seconds', 'passes')]),
    ],
)
def test_a_frontier_is_drawn_by_the_judge(two_ways, drawn, args, panels):
    main([two_ways, '-o', 'x.png', *args])
    assert drawn == [(panels, 'x.png')]


def test_a_frontier_is_printed_at_the_most_passes(two_ways, drawn, table):
    said = table(two_ways)
    assert said == ['judge_nats entropy', 'one_token 2.500 2.000', 'fixed 2.750 2.000']


def test_seeds_whose_passes_differ_are_a_mean_by_setting(runs, table):
    paths = []
    for seed, passes, nats in ((0, 3.0, 2.5), (1, 3.5, 2.75)):
        ways = points(one_token=ONE_TOKEN, lossless=[(passes, 2.0, nats)])
        paths.append(write(runs / f'f_seed{seed}.json', ways))
    said = table(*paths, '-o', 'x.png', '--labels=one,lossless')
    assert said[2].startswith('lossless 2.625 ± 0.125 (2) ')  # not uneven


@pytest.fixture
def exact(runs):
    """A frontier that has nats, and an older one that has none."""
    result = points(one_token=ONE_TOKEN, margin=[(8, 3.0, 2.0)], fixed=[(2, 1.0, 3.0)])
    for point in result['frontier']:
        point |= {'nats': 2.0, 'nats_error': 0.1, 'cost': 0.5, 'cost_error': None, 'slots': 1.5}
    older = points(one_token=ONE_TOKEN)
    return write(runs / 'new.json', result), write(runs / 'old.json', older)


def test_a_frontier_with_nats_is_drawn_by_them(exact, drawn):
    new, old = exact
    main([new])
    main([new, '--y=judge_nats,entropy'])
    main([new, old])
    by_nats, asked, beside_an_older = (panels for panels, _ in drawn)
    assert by_nats == [('passes', 'nats'), ('slots', 'nats'), ('seconds', 'nats')]
    assert asked == [('passes', 'judge_nats'), ('passes', 'entropy')]
    assert beside_an_older[0] == ('passes', 'judge_nats')


def test_a_number_that_is_missing_is_left_out(exact):
    new, old = exact
    assert 'cost_error' not in read_results(new)['fixed'][0]  # of a single block
    assert len(draw(read_all([new, old]), [('slots', 'nats')], 'x.png').axes) == 1


def test_a_panel_has_its_words(exact):
    new, _ = exact
    (axis,) = draw(read_all([new]), [('slots', 'nats')], 'x.png').axes
    assert axis.get_title('left') == 'held-out text'
    assert axis.get_xlabel() == 'slots a token'


# --------------------------------------------------------------------------------------------------
# the picture


def test_a_policy_has_one_colour_whatever_its_blocks():
    ways = ['margin', 'fixed', 'margin threshold', 'margin blocks of 8', 'margin blocks of 32']
    groups = {'one_token': [[{'level': 1}]]} | {way: [[{}]] for way in ways}
    _, margin, fixed, threshold, *blocks = styles(groups).values()
    assert {margin['color']} == {x['color'] for x in (threshold, *blocks)}
    assert margin['color'] != fixed['color']
    assert threshold == margin | {'markerfacecolor': 'white'}
    assert [x['linestyle'] for x in (margin, fixed, *blocks)] == ['-', '-', '--', '--']
    assert len({x['marker'] for x in (margin, fixed, *blocks)}) == 4


def test_lines_have_the_colour_of_their_label(runs):
    entries = read_run('a')
    logs = [('a', entries), ('b', entries), ('a', entries)]
    lines = draw(logs, [('tokens', 'loss')], 'x.png').axes[0].lines
    assert [line.get_color() for line in lines] == list(COLORS[:2])
    assert [len(line.get_xdata()) for line in lines] == [2, 2]


def test_nine_labels_have_nine_looks(runs):
    logs = [(str(i), read_run('a')) for i in range(9)]
    lines = draw(logs, [('tokens', 'loss')], 'x.png').axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9


@pytest.mark.parametrize('length', [8, 45])
def test_a_legend_is_not_wider_than_its_figure(runs, length):
    logs = [(f'{i}' * length, read_run('a')) for i in range(6)]
    figure = draw(logs, [('tokens', 'loss'), ('tokens', 'val_any')], 'x.png')
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_a_label_that_begins_with_an_underscore_has_its_entry(runs):
    labels = ['_first', 'second', '__', '_nolegend_', '_: margin']
    logs = [(label, read_run('a')) for label in labels]
    (legend,) = draw(logs, [('tokens', 'loss')], 'x.png').legends
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_a_picture_is_written_through_a_link(runs):
    (runs / 'shared').mkdir()
    (runs / 'x.svg').symlink_to('shared/x.svg')
    main(['a', '-o', 'x.svg'])
    assert (runs / 'x.svg').is_symlink()
    assert os.listdir('shared') == ['x.svg']


def test_runs_of_a_label_are_their_mean_and_a_band():
    first = [{'iter': 1, 'time': 2.0, 'loss': 3.0}, {'iter': 2, 'time': 4.0, 'loss': 1.0}]
    second = [{'iter': 1, 'time': 4.0, 'loss': 5.0}, {'iter': 2, 'time': 5.0, 'loss': 1.5}]
    first[1]['val_any'] = 9.0
    group = [first, second]
    assert mean_curve(group, 'time', 'loss') == ([3.0, 4.5], [4.0, 1.25], [3.0, 1.0], [5.0, 1.5])
    assert mean_curve(group, 'time', 'val_any') is None  # not of all
    assert mean_curve([first], 'time', 'loss') is None
    second[1]['iter'] = 3
    assert mean_curve(group, 'time', 'loss') is None  # other updates: each by itself


OF_ENSEMBLE = [
    {'members': 1, 'nats': 2.9, 'nats_error': 0.01},
    {'members': 2, 'nats': 2.8, 'nats_error': 0.02},
    {'members': 4, 'nats': 2.6, 'nats_error': 0.04},
]
BY_MEMBERS = [('members', 'nats')]


def test_bars_show_errors_and_a_bound_is_a_level(runs):
    bound = {'members': 1, 'nats': 2.5, 'nats_error': 0.1}
    figure = draw([('d', OF_ENSEMBLE), ('e', [bound])], BY_MEMBERS, 'x.svg')
    (axis,) = figure.axes
    bars = axis.containers[0].lines[2][0].get_segments()
    assert bars[0][:, 1] == pytest.approx([2.89, 2.91])
    assert bars[1][:, 1] == pytest.approx([2.78, 2.82])
    assert bars[2][:, 1] == pytest.approx([2.56, 2.64])
    assert figure.legends[0].get_title().get_text() == 'bars and bands: standard error'
    assert axis.patches[0].get_y() == pytest.approx(2.4)
    assert axis.patches[0].get_height() == pytest.approx(0.2)


def test_a_band_shows_seeds(runs):
    other = [entry | {'nats': entry['nats'] + 0.2} for entry in OF_ENSEMBLE]
    figure = draw([('d', OF_ENSEMBLE), ('d', other)], BY_MEMBERS, 'x.svg')
    (axis,) = figure.axes
    (band,) = axis.collections
    edges = {round(float(y), 9) for y in band.get_paths()[0].vertices[:, 1]}
    assert edges == {2.6, 2.8, 2.9, 3.0, 3.1}
    (line,) = axis.lines
    assert line.get_ydata() == pytest.approx([3.0, 2.9, 2.7])
    assert 'from the least to the greatest' in figure.legends[0].get_title().get_text()


def test_a_picture_that_cannot_be_written_is_one_line_and_leaves_the_older_one(runs, forked):
    (runs / 'x.pdf').write_bytes(b'older')

    def plot_on_a_full_disk():  # the kernel refuses what is longer, as it would on a full disk
        with one_line_errors():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            main(['a', '-o', 'x.pdf'])

    (finished,) = forked(plot_on_a_full_disk)
    assert (finished.code, finished.said) == (1, "error: [Errno 27] File too large: 'x.pdf'\n")
    assert (runs / 'x.pdf').read_bytes() == b'older'
    assert not list(runs.glob('*.tmp'))


# --------------------------------------------------------------------------------------------------
# wrong input

FILES = {
    'x.json': [],
    'word.json': {'results': [ACCURACY]},
    'e.json': {'results': [result('any order x 1', 2)]},
    'null.json': {'results': [result('any order x 1', None)]},
    'nan.json': {'results': [result('any order x 1', math.nan)]},
    'large.json': {'generation': [{'steps': 4, 'decoder': 10**400, 'encoder': 1}]},
    'none.json': {'generation': []},
    'frontier.json': points(fixed=[(1, 1.0, 2.5)]),
}


@pytest.mark.parametrize(
    'args, said',
    [
        (['c'], 'no log c'),
        (['x.json'], 'x.json cannot be read'),
        (['word.json'], 'no numbers that can be drawn'),
        (['cut.json'], 'cut.json cannot be read'),
        (['nan.json'], 'nan.json cannot be read'),
        (['large.json'], 'large.json cannot be read'),
        (
            ['null.json'],
            'null.json cannot be read as the JSON file of a result: name what eval_ppl',
        ),
        (['frontier.json', 'e.json'], 'of one kind'),
        (['none.json'], 'no numbers that can be drawn'),
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
    for name, content in FILES.items():
        write(runs / name, content)
    write_log(runs / 'null.jsonl', [{'iter': 1, 'loss': None}])
    (runs / 'cut.json').write_text((runs / 'e.json').read_text()[:-3])
    with pytest.raises(ValueError, match=said):
        main(args)
