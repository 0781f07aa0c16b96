"""The door of anyorder/: orders, of grids and of a user, too, seeds, checkpoint files, weights."""

import itertools
import json
import os
import pathlib
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import close, make_model, one_line
from toy_runs import resume, run

import train
from anyorder.checkpoint import (
    Checkpoint,
    config_from_checkpoint,
    digest,
    entries_of,
    load_checkpoint,
    model_from_checkpoint,
    open_checkpoint,
    save_checkpoint,
)
from anyorder.extras import orders as orders_of_grids
from anyorder.extras.hub.folders import read_weights
from anyorder.functions import LOADED, loaded, names_of
from anyorder.generation.unmasking import Adaptive, Given
from anyorder.generation.way import Way
from anyorder.orders import ORDERS, Order, draw_orders, read_order, sample_order
from anyorder.seeds import (
    derive_seed,
    drawn_seeds,
    hashed,
    keys_of,
    numbered_keys,
    random_bits,
    seeds_of,
    stream,
    uniform,
)
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.training.start import open_start
from anyorder.weights import embedding_rows, local_path, unwrapped
from anyorder.writer import Writer
from configurator import Config, configure
from model import AOGPT, EMA, AOGPTConfig

# --------------------------------------------------------------------------------------------------
# orders


PINNED = {
    'fixed': '7 4 2 5 1 6 0 3',
    'fixed@5': '4 3 7 1 2 5 6 0',
    'block:3@5': '1 2 0 4 5 3 7 6',
    'swaps:7@4': '6 5 2 1 3 0 4 7',
    'random': '1 4 3 7 5 6 2 0',
    'few:3@4': '0 2 6 5 7 3 4 1',
    'sorted_subset': '1 3 4 7 0 2 5 6',
    'r2l': '7 6 5 4 3 2 1 0',
}


@pytest.mark.parametrize('text', PINNED)
def test_orders_are_pinned(text):
    """Published runs and logs depend on them."""
    order = Order.of(text, {}).draw(1, 8, stream('x'))
    assert ' '.join(map(str, order[0].tolist())) == PINNED[text]


def test_orders_of_blocks_are_pinned():
    """Validations depend on them."""
    assert draw_orders([5], 8).tolist() == [[6, 3, 0, 2, 5, 4, 7, 1]]


def test_the_last_number_of_a_row_decides_whether_it_is_left_to_right():
    u = torch.rand(300, 5, dtype=torch.float64, generator=stream('x'))
    mixed = torch.where(u[:, 4:] < 0.5, torch.arange(4), torch.arange(4).flip(0))
    assert torch.equal(sample_order(300, 4, 'r2l', 0.5, generator=stream('x')), mixed)


@pytest.mark.parametrize('text', ['fixed@1', 'block@1', 'swaps:9@1', 'r2l'])
def test_a_shorter_sequence_leaves_out_what_lies_behind(text):
    whole = Order.of(text, {}).draw(1, 40)[0]
    part = Order.of(text, {'block_size': 40}).draw(2, 13)
    assert torch.equal(part[1], whole[whole < 13])


@pytest.mark.parametrize('kind', ORDERS)
def test_orders_of_blocks_depend_on_seed_and_number_alone(kind):
    order = Order(kind, shape=(5, 8), seed=3)
    orders = draw_orders(range(6), 40, 2, 7, order)
    assert torch.equal(draw_orders([4, 1], 40, 2, 7, order), orders[[8, 9, 2, 3]])
    assert torch.equal(draw_orders(range(6), 40, 2, 8, order), orders) == (not order.drawn)
    keys = random_bits(numbered_keys(7, [5]), torch.arange(2))
    own = [replace(order, seed=3 + k).draw(1, 40, keys=keys[k : k + 1]) for k in range(2)]
    if kind != 'few':  # whose seed is of the orders
        assert torch.equal(orders[10:], torch.cat(own))


# ---- names of orders

BLOCK = {'order': 'block:2@3', 'seed': 9, 'l2r_ratio': 0.1, 'block_size': 8}
# a text, the options of a run, what a checkpoint keeps of the order, its law, its likelihood
NAMED = [
    ('own', BLOCK, 'block:2@3', 'several', 'own'),
    ('block:4', BLOCK, 'block:4@3', 'several', 'own'),
    ('own', {'order': 'block:4'}, 'block:4', 'several', 'own'),
    ([1, 0], BLOCK, [1, 0], 'one', 'own'),
    ('swaps', {'order': 'block:2'}, 'swaps:16', 'several', 'own'),
    ('swaps', {'order': 'swaps:9'}, 'swaps:9', 'several', 'own'),
    ('fixed@100000000000', {}, 'fixed@100000000000', 'several', 'own'),
    ('few:1@5', {}, 'few:1@5', 'one', 'own'),
    ('random', BLOCK, 'random', 'random', 'any'),
    ('l2r', BLOCK, 'l2r', 'one', 'l2r'),
    ('rows', BLOCK | {'shape': (2, 4)}, 'rows', 'several', 'own'),
    ('spiral', {}, 'spiral', 'one', 'own'),
]


@pytest.mark.parametrize('text, run, kept, law, estimate', NAMED)
def test_a_text_and_the_options_of_a_run_give_an_order(text, run, kept, law, estimate):
    order = Order.of(text, run)
    assert (order.kept, order.law, order.estimate) == (kept, law, estimate)
    assert (order.length, order.shape) == (run.get('block_size'), run.get('shape'))
    assert Order.of(kept, run) == order
    called = ('listed', 'b.json') if order.kind == 'listed' else (kept, kept)
    assert (order.name, order.name_as('a/b.json')) == called


def test_of_some_orders_each_row_has_a_draw_of_its_own_and_known_tokens_left_to_right():
    drawn = [kind for kind in ORDERS if ORDERS[kind].drawn]
    assert drawn == ['random', 'few', 'sorted_subset', 'rows', 'columns', 'blocks2d']
    assert [kind for kind in ORDERS if Order(kind).known_l2r] == ['random', 'sorted_subset']


def test_the_name_of_a_function_wants_no_file():
    assert Order('mine.py:f@0123456789ab').name == 'mine.py:f'


def listed(text):
    pathlib.Path('order.json').write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_order('order.json')


def test_a_file_has_positions_of_the_model_or_fewer(home):
    assert listed('[2, 0, 1]') == [2, 0, 1] == read_order('~/order.json')
    assert Order.of([3, 2, 0, 1, 4], {'block_size': 9}).draw(2, 3).tolist() == [[2, 0, 1]] * 2
    order = Order('listed', (3, 2, 0, 1))
    order.check(3, 4)
    for asked, said in (((2, 3), 'at most the 3'), ((5,), '0 to 4 once')):
        with one_line(said):
            order.check(*asked)


def test_a_text_that_is_no_order_is_one_line():
    """Also a file, and a number that a family refuses."""
    right = ['few:3@4', 'block:1', 'own']
    assert [read_order(text, 'own') for text in right] == right
    for wrong in (
        'own',
        'swaps:',
        'swaps:-1',
        'l2r:3',
        'l2r@1',
        'block:2.5',
        'block:0',
        'few:0',
        'blocks2d:0',
        f'swaps:{2**31}',
        'none.json',
        '',
        '.',
    ):
        with one_line(f'{wrong!r} is no order.*JSON file'):
            read_order(wrong)
    numbers = '[0, 1, 1]', '[3, 1, 2]', '[-1, 0, 1]', f'[0, {2**99}]', '[0.0, 1]', '3', '[[0]]'
    for text in (*numbers, '{"order": [0]}', '[2, 0', b'\xff\xfe\0', '[' * 99999):
        with one_line('order.json cannot be read as a JSON list'):
            listed(text)
    with one_line("order must be random, l2r, .*, got 'rl'"):
        Order('rl')
    for positions in ([0, 1, 1], [3, 1, 2], [], [-1, 0, 1]):
        with one_line(f'from 0 to 2 once, and listed of {len(positions)}'):
            Order.of(positions, {}).draw(1, 3)


# --------------------------------------------------------------------------------------------------
# seeds


def test_seeds_are_a_function_of_their_names():
    assert derive_seed(1, 2) == hashed(1, 2) == 5142973159532490859
    assert derive_seed(1, 2, 3) == 2904650318594197935
    assert derive_seed(1, 2, 0) == 2677740985567283079
    names = itertools.product((1, 2, 'dropout'), range(5_000), range(2))
    states = [derive_seed(*of_one) % 2**32 for of_one in names]
    assert len({*states}) > 30_000 - 4  # as far as 32 bits reach
    assert len({*drawn_seeds(999, stream(1))}) == 999
    assert seeds_of(5, 3) == [5, 6, 7]
    assert seeds_of(np.uint8(255), 2) == [255, 256]
    assert seeds_of([4, np.int64(4)], 2) == [4, 4]


def test_bits_are_those_of_splitmix64():
    """Its published numbers for the seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    known += [4593380528125082431, 16408922859458223821]
    bits = random_bits(torch.tensor(1234567), torch.arange(1, 6))
    assert [int(one) % 2**64 for one in bits] == known


def test_numbers_of_a_row_are_pinned_and_every_bit_of_a_seed_counts():
    found = uniform(keys_of([5]), 'tokens', 3, torch.arange(2))
    assert (2**53 * found).tolist() == [8136883725737428, 2578434551019903]
    seeds = [0, *(2**i for i in range(80))]
    assert len({*uniform(keys_of(seeds), 'tokens', 0).tolist()}) == 81


def test_a_device_without_float64_has_the_first_24_bits_of_a_number(monkeypatch):
    keys = keys_of(range(999))
    exact = uniform(keys, 'tokens')
    monkeypatch.setattr('anyorder.seeds.widest', lambda device: torch.float32)
    assert torch.equal(uniform(keys, 'tokens').double(), (exact * 2**24).floor() / 2**24)


# --------------------------------------------------------------------------------------------------
# checkpoints

SIGMA = dict(target_position='input', gpt2_blocks=True)
HEAD = 'lm_head.weight'
EMBEDDING = 'transformer.wte.weight'


def averaged(**config):
    """(model, its average), with other weights."""
    model = make_model(**config).float()
    ema = EMA(model, 0.9)
    for p in model.parameters():
        p.mul_(1.1)
    ema.update(model)
    ema.update(model)
    return model, ema


@pytest.mark.parametrize(
    'network',
    [
        dict(gate_init=1.0, n_cond=24, n_tokens=7),
        dict(SIGMA, bias=False),
        dict(target_position='two_stream', rotary=True),
    ],
)
def test_our_file_gives_the_model_back(network):
    model, ema = averaged(**network)
    save_checkpoint('c.pt', model, ema, iter_num=3)
    for weights, origin in {'raw': model, 'ema': ema.model}.items():
        loaded = model_from_checkpoint('c.pt', weights)
        assert not loaded.training
        assert digest(loaded) == digest(origin)
    average = load_checkpoint('c.pt')['ema_model']
    assert (average['num_updates'], average['decay']) == (2, 0.9)


def test_what_published_sizes_leave_out_is_inferred():
    """GPT-2's vocabulary has 50257 tokens, padded to 50304; the weights have the width of the
    condition."""
    args = {'block_size': 4, 'vocab_size': 50304, 'n_layer': 1, 'n_head': 1, 'n_embd': 8, 'more': 1}
    weights = {'transformer.wtpe.weight': torch.zeros(4, 6)}
    config = config_from_checkpoint({'model_args': args, 'model': weights})
    assert (config.n_real, config.n_cond) == (50257, 6)
    assert [embedding_rows(n) for n in (1, 64, 65, 50257)] == [64, 64, 128, 50304]


def test_a_digest_tells_all_weights_and_sizes_and_stays_as_journals_have_it(model):
    other = AOGPT(replace(model.config, attention='bidirectional')).double()
    other.load_state_dict(model.state_dict())  # the same weights
    digests = {digest(model), digest(other)}
    for p in model.parameters():
        p.view(-1)[-1] += 1e-9
        digests.add(digest(model))
    assert len(digests) == 2 + len(list(model.parameters()))
    tiny = AOGPT(AOGPTConfig(block_size=2, vocab_size=3, n_layer=1, n_head=1, n_embd=2, n_cond=2))
    for p in tiny.parameters():
        torch.nn.init.zeros_(p)
    assert digest(tiny) == '6e04265715923cced633f3b7aa1d970c'


def test_a_checkpoint_is_opened_with_all_that_it_says():
    model, ema = averaged(vocab_size=320, n_tokens=257)
    run = {'order': 'block:2@3', 'l2r_ratio': 0.5}
    counts = torch.arange(257)
    save_checkpoint(
        'c.pt', model, ema, iter_num=7, tokenizer='bytes', config=Config(run), counts=counts
    )
    opened = Checkpoint('c.pt')
    assert (opened.tokenizer.name, opened.run, opened.iter_num) == ('bytes', run, 7)
    assert (opened.order, opened.weights) == (Order('block', 2, seed=3), 'ema')
    opened.tokenizer.special = {'<a>': 7, '<b>': 3}
    found = opened.model('raw')
    assert torch.equal(found.counts, counts)
    assert found.exempt.tolist() == [3, 7, 256]  # for which a penalty is not
    assert found.state_dict().keys() == model.state_dict().keys()
    # as if neither was there
    save_checkpoint('c.pt', model, tokenizer='bytes', ema_model=None, config=None)
    opened = Checkpoint('c.pt')
    assert (opened.weights, opened.run, opened.counts) == ('raw', {}, None)
    assert opened.order == Order()
    assert opened.about('raw') == 'c.pt: raw weights, iteration ?'


OWN = {'tokenizer': 'own', 'n_tokens': 7}
WRONG = [  # (entries of a checkpoint, what is said)
    ({}, '11 tokens, gpt2 has 50257'),  # as published: GPT-2's tokens
    ({'tokenizer': 'other'}, "other', and known are bytes, gpt2, "),
    *(({name: [1]}, 'c.pt .*version') for name in ('model_args', 'ema_model', 'config')),
    ({'tokenizer': 5}, 'c.pt .*version.* tokenizer'),
    *(({'config': {'order': order}}, 'c.pt .*config and .*version') for order in (5, None, 'l2')),
    ({'config': {'shape': 3}}, 'c.pt .*config and .*version'),
]
for more in ('more', 'vocabulary', 'eos', 'n_tokens', 'tokenizer', 'given'):
    WRONG.append(({'set': OWN | {more: [1, 2]}}, 'c.pt .*set are'))


@pytest.mark.parametrize('entries, said', WRONG)
def test_an_entry_of_a_checkpoint_that_is_wrong_is_one_line(model, entries, said):
    save_checkpoint('c.pt', model, **entries)
    with one_line(said):
        print(Checkpoint('c.pt').tokenizer)


def test_a_checkpoint_in_the_home_folder(home, ckpt, tmp_path, monkeypatch):
    os.mkdir('here')
    monkeypatch.chdir('here')
    assert Writer(pathlib.Path('~/ckpt.pt')).checkpoint.iter_num == 7
    os.symlink(tmp_path / 'ckpt.pt', tmp_path / 'c.pt')
    save_checkpoint('~/c.pt', make_model(), iter_num=8)  # replaces the link
    assert [load_checkpoint(f'~/{name}.pt')['iter_num'] for name in ('c', 'ckpt')] == [8, 7]
    with pytest.raises((OSError, ImportError), match=f'{tmp_path}/here|No module'):
        open_checkpoint('masked:~/here')


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('exploded',)


HALF = object()
FOLDER = object()
FILES = [  # (what a file holds, what is said)
    (None, 'no checkpoint'),
    (FOLDER, 'no checkpoint'),
    (b'', '.0 bytes. cannot be read'),
    (HALF, 'cannot be read'),
    (bytes(range(7, 200)), 'cannot be read'),
    (Bomb(), 'cannot be read'),
    ([], 'is not a checkpoint'),
    ({'model': {}}, 'is not a checkpoint'),
    ({'model': None, 'model_args': {}}, 'is not a checkpoint'),
    ({'model': {}, 'model_args': {}, 'counts': [1]}, 'counts must be a Tensor, got list'),
    ({'model': {}, 'model_args': {}, 'sets': [1]}, 'sets must be a dict, got list'),
]
for value, name in (
    (np.datetime64('2020-01-01'), 'numpy'),
    (np.array([None]), 'numpy'),
    (np.zeros(2, 'i4,O'), 'numpy'),
    (Bomb(), 'mkdir'),
):
    held = {'model': {}, 'model_args': {}, 'more': [value]}
    FILES.append((held, f'cannot be read as a checkpoint: it holds .*{name}'))


@pytest.mark.parametrize('held, said', FILES)
def test_files_that_are_no_checkpoint_are_one_line_and_run_no_code(model, held, said):
    for is_zip in (True, False):
        if held is HALF:
            save_checkpoint('c.pt', model)
            whole = pathlib.Path('c.pt').read_bytes()
            pathlib.Path('c.pt').write_bytes(whole[: len(whole) // 2])
        elif held is FOLDER:
            pathlib.Path('c.pt').mkdir(exist_ok=True)
        elif isinstance(held, bytes):
            pathlib.Path('c.pt').write_bytes(held)
        elif held is not None:
            torch.save(held, 'c.pt', _use_new_zipfile_serialization=is_zip)
        with one_line(f'{said}.*c.pt|c.pt.*{said}'):
            load_checkpoint('c.pt')
    assert not os.path.exists('exploded')


PLAIN = [  # (what a training loop keeps, what is read)
    (np.float64(3.2), 3.2),
    (np.int64(-3), -3),
    (np.bool_(True), True),
    (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
    (np.asfortranarray(np.arange(6.0).reshape(2, 3)), [[0, 1, 2], [3, 4, 5]]),
    (np.arange(3, dtype='>i2'), [0, 1, 2]),
    (np.bytes_(b''), b''),
    ((1, b'x', None, 2**70), (1, b'x', None, 2**70)),
]


@pytest.mark.parametrize('is_zip', [True, False])
def test_plain_values_and_numbers_of_numpy_are_read(model, is_zip):
    """Arrays are read as lists, for a state of random numbers is often beside the weights."""
    kept, right = map(list, zip(*PLAIN))
    entries = entries_of(model.float()) | {'kept': kept}
    torch.save(entries, 'c.pt', _use_new_zipfile_serialization=is_zip)
    data = pathlib.Path('c.pt').read_bytes()
    if not is_zip:  # as numpy 1 names its functions
        data = data.replace(b'numpy._core.multiarray', b'numpy.core.multiarray')
    pathlib.Path('older.pt').write_bytes(data)
    for path in ('c.pt', 'older.pt'):
        checkpoint = load_checkpoint(path)
        assert checkpoint['kept'] == right
        assert not any(isinstance(value, np.generic | np.ndarray) for value in checkpoint['kept'])
        assert digest(model_from_checkpoint(checkpoint, 'raw')) == digest(model)


@pytest.mark.parametrize(
    'weights, change, said',
    [
        ('ema', {}, 'no EMA'),
        ('ema', {'ema_model': {'shadow_params': [1, 2]}}, r'no EMA of its \d\d weights'),
        ('ema', {'ema_model': {'shadow_params': 3}}, 'no EMA'),
        ('ema', {'ema_model': {'shadow_params': {'aa': 1}}}, 'aa .*int'),
        ('ema', {'ema_model': {'shadow_params': {'zz': torch.ones(1)}}}, 'differ in name'),
        ('raw', {'model_args': {'n_layer': 1}}, 'differ .*h.1'),
        ('raw', {'model_args': {'n_layer': 'a'}}, 'n_layer'),
        ('both', {}, 'weights must be .*ema, raw'),
        ('raw', {'wnonee': float('nan')}, 'diverged: 1 weights .*wnonee'),
        ('raw', {'wnonee': 3e38}, 'diverged: 1 weights .*wnonee'),  # its logits are not finite
    ],
)
def test_checkpoints_with_a_part_that_is_wrong(model, weights, change, said):
    checkpoint = entries_of(model.float())
    if 'wnonee' in change:
        checkpoint['model']['transformer.wnonee.weight'][0, 3] = change['wnonee']
    args = checkpoint['model_args'] | change.get('model_args', {})
    with one_line(said):
        model_from_checkpoint(checkpoint | change | {'model_args': args}, weights)


# what stands before a name, which name of a tied matrix is left out, and how the average is stored
TIES = [
    ('', '', 'names'),
    ('', EMBEDDING, 'names'),
    ('', HEAD, 'names'),
    ('', EMBEDDING, 'list'),
    ('', '', 'list of all'),
    ('module._orig_mod.', '', 'names'),
]


@pytest.mark.parametrize('prefix, left_out, average', TIES)
def test_weights_in_a_file_of_others(prefix, left_out, average):
    model, ema = averaged(**SIGMA)

    def stored(network):
        weights = network.state_dict().items()
        return {prefix + name: p for name, p in weights if name != left_out}

    entries = entries_of(model, ema) | {'model': stored(model)}
    shadow = stored(ema.model)
    kinds = {'names': shadow, 'list': [*ema.model.parameters()], 'list of all': [*shadow.values()]}
    entries['ema_model']['shadow_params'] = kinds[average]
    torch.save(entries, 'c.pt')
    assert digest(model_from_checkpoint('c.pt', 'raw')) == digest(model)
    assert digest(model_from_checkpoint('c.pt', 'ema')) == digest(ema.model)


# --------------------------------------------------------------------------------------------------
# weights of others


def test_a_folder_of_weights():
    """Safetensors come before pickles, and stay when a file is overwritten; parts are read from the
    folder alone."""
    save_file = pytest.importorskip('safetensors.torch').save_file
    tensors = {'a': torch.tensor([1.5, -2.0]), 'ids': torch.tensor([[3, -1], [2**40, 0]])}
    torch.save({'a': torch.zeros(1), 'step': 3}, 'pytorch_model.bin')
    assert [*read_weights('.')] == ['a']
    save_file(tensors, 'model.safetensors')
    weights = read_weights('.')
    with open('model.safetensors', 'rb+') as f:
        f.write(b'\xff' * os.path.getsize('model.safetensors'))
    close(weights, tensors, 0)
    os.remove('model.safetensors')
    places = {'a': '../else/1.safetensors', 'ids': '/etc/2.safetensors'}
    pathlib.Path('model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
    for name, place in places.items():
        save_file({name: tensors[name]}, os.path.basename(place))
    assert read_weights('.').keys() == places.keys()


WTE = torch.tensor([1.1, float('nan')])  # of a run that diverged model_from_checkpoint says so
EIGHT = WTE.to(torch.float8_e4m3fn)


def test_a_matrix_of_several_names_has_one_value():
    """In any dtypes: of a tied head, and where wrappers put more into names."""
    for weights in (
        {'h.wte': WTE},
        {'head': WTE},
        {'h.wte': WTE, 'head': WTE.double()},
        {'h.wte': EIGHT.float(), 'head': EIGHT},
        {'_orig_mod.module.h.wte': WTE},
        {'_fsdp_wrapped_module.h._checkpoint_wrapped_module.wte': WTE, 'h.wte': WTE},
    ):
        first = next(iter(weights.values()))
        found = unwrapped(weights | {'modules.a': WTE}, 'head', 'h.wte')
        assert found.keys() == {'h.wte', 'modules.a'}
        assert torch.equal(found['h.wte'].nan_to_num(), first.nan_to_num())
    for name, other in (
        ('head', WTE + 1e-3),
        ('head', WTE[:1]),
        ('head', EIGHT),
        ('module.h.wte', WTE + 1),
    ):
        with one_line('two different weights h.wte'):
            unwrapped({'h.wte': WTE, name: other}, 'head', 'h.wte')


def test_a_weight_is_a_tensor_of_real_numbers():
    ones = torch.ones(3)
    for value in (3, None, ones.to('meta'), ones.to_sparse(), ones.to(torch.complex64)):
        with one_line('module.head .*(int|NoneType|Tensor)'):
            unwrapped({'head': ones, 'module.head': value})


def test_names_of_the_hub(monkeypatch):
    hub = pytest.importorskip('huggingface_hub')
    asked = []

    def snapshot(repo, allow_patterns):
        asked.append((repo, allow_patterns[-1]))
        if 'xl' in repo:
            os.makedirs(repo)
            pathlib.Path(repo, 'model.safetensors').touch()
        return repo

    def download(repo, file):
        if file == 'gone.pt':
            raise OSError('a\nb')
        return f'{repo}|{file}'

    monkeypatch.setattr(hub, 'snapshot_download', snapshot)
    monkeypatch.setattr(hub, 'hf_hub_download', download)
    pathlib.Path('gpt2').touch()  # what is here comes first
    names = ('hf:me/it/124M/x.pt', 'gpt2-xl', 'hf:me/mine', 'gpt2')
    paths = ['me/it|124M/x.pt', 'openai-community/gpt2-xl', 'me/mine', 'gpt2']
    assert [*map(local_path, names)] == paths
    safe, pickled = ('model*.safetensors*', 'pytorch_model*.bin*')
    assert asked == [('openai-community/gpt2-xl', safe), ('me/mine', safe), ('me/mine', pickled)]
    with one_line('hf:me/it/gone.pt'):
        local_path('hf:me/it/gone.pt')


# --------------------------------------------------------------------------------------------------
# orders of a grid

# a family, its number, and the cells of (3, 4) by 24 numbers, 0 7 14 21 4 11 ..: cells are sorted
# by the first 12, and behind them are those of blocks
GRIDS = [
    ('by_rows', None, '0 1 2 3 7 4 5 6 11 8 9 10'),
    ('by_columns', None, '0 4 8 1 5 9 2 6 10 7 11 3'),
    ('spiral', None, '0 1 2 3 7 11 10 9 8 4 5 6'),
    ('by_squares', 1, '2 9 6 3 10 0 7 4 11 1 8 5'),
    ('by_squares', 2, '8 9 11 10 0 4 1 5 7 2 6 3'),
    ('by_squares', 3, '0 4 1 8 5 2 9 6 10 7 11 3'),
    ('by_squares', 9, '0 7 4 11 1 8 5 2 9 6 3 10'),
]


def test_the_cells_of_a_grid_come_in_an_order_by_hand():
    u = torch.arange(24) * 7 % 24 / 24
    for family, number, cells in GRIDS:
        of_row = u[None] if number else u[None, :12]
        order = getattr(orders_of_grids, family)(of_row, (3, 4), number)
        assert order.tolist() == [[*map(int, cells.split())]]


def test_an_order_of_a_grid_wants_all_cells_of_one():
    Order('rows', shape=(3, 4)).check(12, 99)
    for n, shape in ((12, None), (11, (3, 4))):
        with one_line('prepare the set with --shape=HxW'):
            Order('rows', shape=shape).check(n, 99)


# --------------------------------------------------------------------------------------------------
# functions of a user

MINE = """
import torch
open('marker', 'a').write('x')
def rows(u, shape, _):
    return (torch.arange(u.size(1)) // shape[1] + u).argsort(-1)
def shifted(u, n, by):
    return (torch.arange(n) + (by or 0)).expand(len(u), -1) % n
def gap(logits):
    top = logits.softmax(-1).topk(2).values
    return top[:, 0] - top[:, 1]
"""


@pytest.fixture
def marker():
    """The working folder has mine.py, which writes a letter into this file when it is run."""
    pathlib.Path('mine.py').write_text(MINE)
    with mock.patch.dict(LOADED):
        yield pathlib.Path('marker')


def test_a_function_of_a_user_is_an_order_or_a_score_by_its_signature(marker):
    own, built_in = [Order.of(read_order(t), {'shape': [3, 4]}) for t in ('mine.py:rows', 'rows')]
    assert torch.equal(*(order.draw(5, 12, stream(1)) for order in (own, built_in)))
    # a number is the third argument, and the one of the run if it is left out
    kept = read_order('mine.py:shifted:3')
    order = Order.of('own', {'order': kept})
    assert order.draw(1, 5).tolist() == [[3, 4, 0, 1, 2]]
    assert (order.kept, order.name) == (kept, 'mine.py:shifted:3')
    plain, digest = kept[:-2], kept[-14:-2]
    assert Order.of(plain, {'order': kept.replace(digest, '0' * 12)}) == order  # of an edited file
    assert Way.of({}, 'mine.py:shifted:3') == Way(Given(), order=Order.of(kept, {}))
    way = Way.of({}, 'mine.py:gap/8:0.9+2')  # which runs the file
    score = Adaptive(score=f'mine.py:gap@{digest}', block_length=8, threshold=0.9, noise=2.0)
    assert way == Way(score)
    with one_line('mine.py:gap is a score'):
        read_order('mine.py:gap')
    assert marker.read_text() == 'x'


WRONG_FUNCTIONS = {  # (what mine.py holds, what is said of mine.py:f)
    'def f(u, n, by): return u': 'must return int64 in .*, got t',
    'def f(u, n, by): return (u * 0).long()': 'every position',
    'def f(u, n, by): return u.argsort(-1)[:, 1:]': 'return int64',
    'def f(u, n, by): return None': 'got None',
    'def f(logits): return logits': 'a float for each row of logits',
    'def f(logits): return logits.argmax(-1)': 'must return a float',
    'def f(logits): return logits[:, 0].tolist()': 'must return a float',
    'def f(logits): return logits[:, 0] * float("nan")': 'none of them NaN, got t',
    'def f(): return 1': 'mine.py has no order f.*no score',
    'def f(u, n): return u': 'has no order f.*too many positional',
    'x = 3': "KeyError.*'f'",
    'def f(:': 'SyntaxError',
}


@pytest.mark.parametrize('content, said', WRONG_FUNCTIONS.items())
def test_a_function_that_is_none_is_one_line(marker, content, said):
    pathlib.Path('mine.py').write_text(content)
    with one_line(said):
        way = Way.of({}, 'mine.py:f')
        way.order.check(4)
        loaded(way.unmasking.score)(torch.zeros(3, 5))


def test_a_checkpoint_and_a_config_file_run_no_file(marker, script):
    """Only a command that is told to runs it; to open and write in other orders does not."""
    kept = read_order('mine.py:shifted:3')
    marker.unlink()
    LOADED.clear()
    names_of.cache_clear()
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint('c.pt', model, tokenizer='bytes', config={'order': kept, 'block_size': 32})
    sample = ['sample.py', '--ckpt=c.pt', '--weights=raw', '--length=9']
    evaluate = ['eval_ppl.py', *sample[1:3], '--datasets=a.txt', '--n_blocks=2']
    pathlib.Path('a.txt').write_text('a few words of text ' * 9)
    pathlib.Path('c.py').write_text("order = 'mine.py:shifted'")
    with one_line('a config file runs no code: .* type --order=mine.py:shifted'):
        open_start(configure(vars(train), ['c.py']))
    script(*sample, '--order=l2r')
    for command in (sample, evaluate):
        assert f'{kept[:-2]}, which no checkpoint runs' in script(*command, code=1).stderr
    assert not marker.exists()
    assert 'mine.py:shifted:3' in script(*evaluate, '--orders=mine.py:shifted').stdout
    assert ' mine.py:gap\n' in script(*sample, '--order=mine.py:gap').stdout


def test_a_run_has_the_shape_of_its_set_and_tells_that_its_file_is_another(data, marker, capsys):
    typed = '--order=mine.py:rows'
    write_meta('data/pydocs', replace(read_meta('data/pydocs'), shape=[2, 8]))
    run(typed, '--max_iters=1')
    assert 'sample.py --ckpt=out/ckpt.pt --order=mine.py:rows\n' in capsys.readouterr().out
    sample = Writer('out/ckpt.pt').infill('').sample
    assert [p // 8 for p in sample['order']] == [0] * 8 + [1] * 8
    pathlib.Path('mine.py').write_text(MINE + '# another file')
    resume(typed)
    before = Checkpoint('out/ckpt.pt').run['order']
    assert f'changed since iteration 1: order {before} -> mine.py:rows@' in capsys.readouterr().out
