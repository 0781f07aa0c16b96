"""A split run saves parts: together they are whole, any number of processes goes on, or they are
refused."""

import glob
import io
import os
import re
import signal
from functools import partial

import pytest
import torch
from conftest import one_line
from test_sharding import OPTIONS, assert_close, entries_after, learner, moments, state_of
from torch.distributed.tensor import DTensor
from toy_runs import assert_same_runs, resume, run

import anyorder.training.parts  # noqa: F401  a second, once for all processes of these tests
import train
from anyorder.checkpoint import load_checkpoint, model_from_checkpoint
from anyorder.machine.parts import read_all, stored
from anyorder.machine.processes import start_processes
from anyorder.training import start
from anyorder.training.run_folder import RunFolder
from configurator import Config

# made by hand: a matrix of 5 x 2 in two parts, as two processes have it
WHOLE = torch.arange(10.0, dtype=torch.float64).view(5, 2)
TREE = {'model': {'w': torch.empty(5, 2, dtype=torch.float64, device='meta')}, 'kept': [3, None]}


@pytest.fixture
def folder(tmp_path):
    """The folder of the parts of WHOLE."""
    return tmp_path / 'parts'


@pytest.fixture
def said(folder):
    """What the file ckpt.pt beside the folder says of the parts."""
    return parts_of(folder, WHOLE, 7)


def parts_of(folder, whole, mark):
    folder.mkdir(exist_ok=True)
    table = {'model/w': []}
    for rank, (first, n) in enumerate([(0, 3), (3, 2)]):
        own = io.BytesIO()
        torch.save(whole[first : first + n].clone(), own)
        end = own.tell()
        table['model/w'].insert(0, [[first, 0], [n, 2], f'{rank}.distcp', 0, end])
        torch.save(torch.tensor([mark]), own)
        n_bytes = own.tell() - end
        table[f'mark/{rank}'] = [[[0], [1], f'{rank}.distcp', end, n_bytes]]
        (folder / f'{rank}.distcp').write_bytes(own.getvalue())
    return {'folder': folder.name, 'table': table, 'mark': mark}


def opened(folder, said, tree=TREE):
    return stored(tree, str(folder.parent / 'ckpt.pt'), said)


def test_parts_are_read_as_a_whole(folder, said):
    tree = read_all(opened(folder, said))
    assert torch.equal(tree['model']['w'], WHOLE)
    assert tree['kept'] == [3, None]


@pytest.mark.parametrize('start, end', [(0, 5), (1, 4), (2, 3), (3, 5), (3, 3)])
def test_rows_of_a_stored_tensor_are_read_alone(folder, said, start, end):
    w = opened(folder, said)['model']['w']
    if end <= 3:
        os.remove(folder / '1.distcp')
    if start >= 3:
        os.remove(folder / '0.distcp')
    assert torch.equal(w.narrow(0, start, end - start), WHOLE[start:end])


def test_a_tensor_of_two_names_stands_in_parts_once(folder, said, tmp_path):
    w = TREE['model']['w']
    torch.save({'model': {'w': w, 'tied': w}}, tmp_path / 'ckpt.pt')
    tree = read_all(opened(folder, said, torch.load(tmp_path / 'ckpt.pt')))
    assert torch.equal(tree['model']['w'], WHOLE)
    assert tree['model']['tied'] is tree['model']['w']


def test_a_stored_tensor_is_a_tensor_to_what_computes(folder, said):
    w = opened(folder, said)['model']['w']
    assert torch.equal(torch.zeros_like(WHOLE).copy_(w), WHOLE)
    assert w.norm() == WHOLE.norm()
    assert type(w + 1) is torch.Tensor


def make_a_folder(path):
    os.remove(path)
    path.mkdir()


def lead_nowhere(path):
    os.remove(path)
    path.symlink_to('nowhere')


@pytest.mark.parametrize('damage', [os.remove, make_a_folder, lead_nowhere])
def test_a_part_that_is_missing_is_named(folder, said, damage):
    damage(folder / '1.distcp')
    with one_line(f'lacks its part {folder}/1.distcp: '):
        opened(folder, said)


def test_a_checkpoint_without_its_folder_names_it(folder, said):
    folder.rename(f'{folder}_renamed')
    with one_line(f'ckpt.pt is not whole without the folder {folder}: '):
        opened(folder, said)


def test_a_part_that_is_cut_off_is_named(folder, said):
    os.truncate(folder / '1.distcp', 100)
    with one_line(f'part {folder}/1.distcp of the checkpoint is cut off: '):
        opened(folder, said)


def test_a_part_of_another_checkpoint_is_named(folder, said):
    parts_of(folder / 'other', WHOLE, 8)
    os.replace(folder / 'other' / '0.distcp', folder / '0.distcp')
    with one_line(f'part {folder}/0.distcp is of another checkpoint: '):
        opened(folder, said)


def test_a_part_lies_in_its_folder(folder, said):
    for rows in said['table'].values():
        for row in rows:
            row[2] = f'../{folder.name}/{row[2]}'
    with one_line('ckpt.pt cannot be read as a checkpoint in parts'):
        opened(folder, said)


ROW = [[0, 0], [2, 2], '0.distcp', 0, 9]


@pytest.mark.parametrize(
    'damage',
    [
        lambda said: said.pop('table'),
        lambda said: said.pop('mark'),
        lambda said: said.update(folder=None),
        lambda said: said.update(folder='../x/parts'),
        lambda said: said.update(table=None),
        lambda said: said['table'].pop('model/w'),
        lambda said: said['table'].pop('mark/1'),
        lambda said: said['table']['model/w'].pop(),  # rows 0 to 2
        lambda said: said['table']['model/w'].pop(0),  # rows 3 and 4
        lambda said: said['table']['model/w'].__setitem__(0, ROW),  # and rows 0, 1 twice
        lambda said: said['table']['model/w'][0].pop(),
        lambda said: said['table'].update({'model/w': [[[0, 0], [5, 1], '0.distcp', 0, 9]]}),
        lambda said: said['table'].update({'model/w': 'text'}),
    ],
)
def test_a_file_that_says_wrongly_where_its_parts_are_is_named(folder, said, damage):
    damage(said)
    with one_line('ckpt.pt cannot be read as a checkpoint in parts'):
        opened(folder, said)


def test_a_file_that_says_nothing_of_its_parts_is_named(tmp_path):
    path = tmp_path / 'ckpt.pt'
    torch.save({'model': TREE['model'], 'model_args': {}}, path)
    with one_line(f'{path} cannot be read as a checkpoint in parts'):
        load_checkpoint(path)


def test_bytes_that_were_changed_in_a_part_are_found(folder, said):
    path = folder / '0.distcp'
    part = path.read_bytes()
    at = part.index(WHOLE[:3].numpy().tobytes())
    path.write_bytes(part[: at + 8] + bytes(8) + part[at + 16 :])  # 1.0 is 0.0 now
    w = opened(folder, said)['model']['w']
    assert torch.equal(w.narrow(0, 3, 2), WHOLE[3:])
    with one_line(f'{path} cannot be read as a part of a checkpoint'):
        w.read()


class Evil:
    def __reduce__(self):
        return os.mkdir, ('ran',)


def test_a_part_runs_no_code(folder, said, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / '0.distcp'
    evil = io.BytesIO()
    torch.save(Evil(), evil)
    said['table']['model/w'][1][3:] = [path.stat().st_size, evil.tell()]
    path.write_bytes(path.read_bytes() + evil.getvalue())
    w = opened(folder, said)['model']['w']
    with one_line(f'{path} cannot be read as a part of a checkpoint'):
        torch.zeros_like(WHOLE).copy_(w)
    assert not os.path.exists('ran')


# written by several processes

SPLIT = [
    '--gradient_accumulation_steps=4',
    '--dtype=float32',
    '--optimizer=muon',
    '--dropout=0.1',
    '--lr_decay_iters=9',
    '--keep_best=val_any',
    '--eval_interval=3',
    '--save_memory=shard',
]


def together(forked, n, body):
    """Call a body in n processes, which all must end well."""
    for p in forked(*[body for _ in range(n)]):
        assert p.code == 0, p.said


def killed(*args, **how):
    os.kill(os.getpid(), signal.SIGKILL)


WRITE_ITEM = 'torch.distributed.checkpoint.filesystem._write_item'
WRITE_CHECKPOINT = 'anyorder.training.run_folder.write_checkpoint'


@pytest.mark.slow
def test_a_run_of_parts_that_is_killed_goes_on_bit_for_bit(data, forked, script):
    """The second process amid its part; then the first one between the parts and ckpt.pt."""

    def killed_in_save_of_6(rank, function, validation):
        def body():
            fail_from(validation, rank, function, killed)
            run('--max_iters=9', *SPLIT, '--init_from=auto')

        codes = [p.code for p in forked(body, body)]
        assert codes[rank] == -signal.SIGKILL
        assert codes[1 - rank] != 0
        assert load_checkpoint('out/ckpt.pt')['iter_num'] == 3

    together(forked, 2, lambda: run('--max_iters=9', *SPLIT, '--out_dir=whole'))
    killed_in_save_of_6(1, WRITE_ITEM, validation=2)
    killed_in_save_of_6(0, WRITE_CHECKPOINT, validation=1)
    assert len(glob.glob('out/parts_0000006_*')) >= 1
    together(forked, 2, lambda: resume('--max_iters=9'))
    assert_same_runs('whole', 'out')

    # What no checkpoint names is gone
    kept = {load_checkpoint(path)['iter_num'] for path in glob.glob('out/*.pt')}
    assert len(glob.glob('out/parts_*')) == len(kept)

    # One file
    script('anyorder.extras.hub', '--ckpt=out/ckpt.pt', '--out=one.pt')
    assert_close(load_checkpoint('one.pt'), load_checkpoint('out/ckpt.pt'), rtol=0, atol=0)
    assert 'parts' not in torch.load('one.pt')

    # A part that is missing
    script('sample.py', '--ckpt=out/ckpt.pt', '--n_samples=1')
    (folder,) = glob.glob('out/parts_0000009_*')
    os.remove(f'{folder}/__1_0.distcp')
    for name in ('sample.py', 'eval_ppl.py'):
        said = script(name, '--ckpt=out/ckpt.pt', code=1).stderr
        assert f'lacks its part {folder}/__1_0.distcp' in said
    with one_line(f'{folder}/__1_0.distcp.*; out/ckpt_0000006.pt is whole: cp '):
        resume('--max_iters=12')


def fail_from(n, rank, function, how):
    """Have a function fail from the n-th validation on in the process of this rank, which saves
    next; the save before is done by then."""
    validate = train.validate_parts
    calls = []

    def validate_parts(*args):
        calls.append(args)
        if len(calls) == n and os.environ['RANK'] == str(rank):
            pytest.MonkeyPatch().setattr(function, how)
        return validate(*args)

    pytest.MonkeyPatch().setattr(train, 'validate_parts', validate_parts)


@pytest.mark.slow
def test_a_part_that_cannot_be_written_is_one_line(data, forked):
    """The last checkpoint stays, and no half of the next one."""

    def full(*args):
        try:
            raise OSError(28, 'No space left on device')
        finally:
            raise RuntimeError('unexpected pos')  # as an archive that is closed

    def body():
        fail_from(2, 1, WRITE_ITEM, full)
        run('--max_iters=9', *SPLIT)

    for p in forked(body, body):
        assert p.code == 1
        said = r'ckpt.pt of iteration 6 .* \(process 1: .* space .*\): go on from iteration 3 '
        assert re.search(f'ValueError: out/{said}', p.said), p.said
    assert load_checkpoint('out/ckpt.pt')['iter_num'] == 3
    assert len(glob.glob('out/parts_*')) == 1


@pytest.fixture
def wide():
    """New networks are of float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_four_processes_go_on_as_two_and_as_one(wide, forked, tmp_path):
    """In float64, ten updates of each: two nodes of two, two processes, and one."""
    options = Config(OPTIONS | {'gradient_accumulation_steps': 4, 'grad_clip': 1.0})
    path = tmp_path / 'ckpt.pt'
    model = learner('decoder', dropout=0.1)
    want, _ = entries_after(state_of(model, 'muon'), 30, options)

    def state_at(save_memory):
        model = learner('decoder', dropout=0.1)
        entries = None
        if path.exists():
            entries = load_checkpoint(path, lazily=True)
            model.load_state_dict(model_from_checkpoint(entries, 'raw').state_dict())
        state = state_of(model, 'muon', save_memory)
        if entries:
            start.resume(state, entries)
        return state

    def part(save_memory):
        os.environ['LOCAL_WORLD_SIZE'] = '2'
        os.environ['LOCAL_RANK'] = str(int(os.environ['RANK']) % 2)
        start_processes()
        state = state_at(save_memory)
        for moment in map(DTensor.to_local, moments(state.optimizers)):  # of the whole none is left
            assert moment.untyped_storage().nbytes() == moment.nbytes
        entries_after(state, 10, options)
        folder = RunFolder(tmp_path, resumed=state.iter_num)
        folder.save(state.model, state.ema, **start.entries_to_resume(state))
        entries_after(state, 1, options)  # while it is written
        folder.settle(wait=True)

    together(forked, 4, partial(part, 'hybrid'))
    together(forked, 2, partial(part, 'shard'))
    state = state_at('')
    assert state.iter_num == 20
    got, _ = entries_after(state, 10, options)
    nothing = {'totals': None}  # each has its own losses
    assert_close(got | nothing, want | nothing, rtol=0, atol=1e-9)
