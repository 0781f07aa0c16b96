"""sample.py: what is written and scored, in which order, what stays after an error, wrong input."""

import itertools
import json
import math
import os

import pytest
import torch
from conftest import REFERENCE, make_model

from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.generation.fill import steps
from anyorder.orders import sample_order
from model import EMA

PUBLISHED = f'{REFERENCE}/adaln_small.ckpt.pt'


def test_command_writes_samples_that_do_not_depend_on_their_number(script, ckpt, tmp_path):
    for n in (1, 3):
        p = script(
            'sample.py',
            f'--ckpt={ckpt}',
            '--weights=raw',
            '--prompt=ab',
            f'--n_samples={n}',
            '--n_steps=5',
            f'--out={n}.json',
        )
        assert (
            'iteration 7' in p.stdout and '5 steps for 30 tokens' in p.stdout and 'nats' in p.stdout
        )
        assert ' parameters, 32 positions, bytes tokens\n' in p.stdout
    one, three = (json.loads((tmp_path / f'{n}.json').read_text())['samples'] for n in (1, 3))
    assert len(three) == 3 and one[0]['tokens'] == three[0]['tokens'] != three[1]['tokens']
    assert three[2]['tokens'][:2] == [97, 98] and three[2]['order'][:2] == [0, 1]
    assert sorted(three[2]['order']) == list(range(32)) and [s['seed'] for s in three] == [
        1337,
        1338,
        1339,
    ]


@pytest.mark.parametrize(
    'args, said',
    [
        (['--temperature=-1'], 'temperature'),
        (['--n_steps=0'], 'n_steps'),
        (['--n_samples=0'], 'n_samples'),
        (['--length=-1'], 'length'),
        (['--context=32'], 'context must be 1 to 31'),
        (['--prompt=a[[=b]]', '--score', '--stop=c'], 'leave out stop'),
        (['--stop=[]'], 'stop must be a text or a list'),
        (['--stop=["a", ""]'], 'leave out'),
        (['--stop=["a", "b"'], 'JSON list'),
        (['--order=up'], 'top_prob'),
        (['--batch_size=0'], 'batch_size'),
        (['--order=margin', '--threshold=abc'], 'threshold'),
        (['--unmask=lossless', '--order=entropy'], 'wants an order that is given'),
        (['--cuda_graphs=True', '--device=cpu'], 'cuda_graphs'),
        (['--cuda_graphs=True', '--use_cache=False'], 'use_cache is False'),
        (['--prompt=a[[x]]'], 'a blank is'),
        (['--prompt=a[[0]]'], 'a blank is'),
        (['--prompt=a[[=]]'], 'a blank is'),
        (['--prompt=a[[3'], 'a blank is'),
        (['--prompt=[[33]]'], '33 tokens'),
        (['--prompt=[[999999999]]'], 'does not fit'),
        (['--prompt=ab', '--length=2'], 'no blank'),
        (['--prompt=' + 'x' * 33], 'does not fit'),
        (['--prompt=a[[3]]', '--score'], 'score'),
        (['--prompt=[[9999999999]]'], 'does not fit'),
        (['--prompt=a\udcff'], 'UTF-8'),
        (['--prompt=FILE:'], 'FILE: must name'),
        (['--html=x.txt'], 'must end in'),
        (['--judge=x.pt'], 'metrics'),
        (['--metrics', '--judge=gpt2-large'], 'or download it and give its path'),
        (['--prompt=FILE:no.jsonl'], 'no.jsonl'),
        ([f'--prompt=FILE:{os.devnull}'], 'holds no prompt'),
        (['--tempratur=1'], "'temperature'"),
        (['--device=cuda:99'], 'device'),
        (['--device=meta'], 'device'),
        (['--ckpt=none.pt'], 'none.pt'),
        (['--weights=ema'], 'EMA'),
        ([f'--ckpt={PUBLISHED}'], 'another tokenizer'),
        (['--out=no/where.json'], '--out=no/where.json'),
        (['--html=no/x.html'], '--html=no/x.html'),
        ([f'--out={PUBLISHED}', '--metrics', f'--judge={PUBLISHED}'], 'would overwrite'),
    ],
)
def test_wrong_input_is_one_line(ckpt, capsys, monkeypatch, args, said):
    import sample
    from anyorder.machine.terminal import one_line_errors
    from configurator import configure

    with pytest.raises(SystemExit) as e, one_line_errors():
        sample.main(configure(vars(sample), [f'--ckpt={ckpt}', '--weights=raw', *args]))
    assert said in e.value.code and '\n' not in e.value.code


def test_what_is_written_before_an_interruption_stays(ckpt, tmp_path, monkeypatch):
    import sample
    from configurator import configure

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        'anyorder.generation.way.steps',
        lambda *a, calls=[]: (calls.append(1), steps(*a) if len(calls) < 3 else interrupt())[1],
    )
    with pytest.raises(KeyboardInterrupt):
        sample.main(
            configure(
                vars(sample),
                [
                    f'--ckpt={ckpt}',
                    '--weights=raw',
                    '--length=4',
                    '--n_samples=9',
                    '--batch_size=2',
                    '--out=o.json',
                ],
            )
        )
    assert len(json.loads((tmp_path / 'o.json').read_text())['samples']) == 4


def test_an_order_that_does_not_fit_is_found_before_anything_is_written(ckpt, tmp_path, script):
    (tmp_path / 'order.json').write_text('[0, 2, 1]')
    (tmp_path / 'p.jsonl').write_text('{"prompt": "[[3]]"}\n{"prompt": "[[4]]"}\n')
    p = script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--order=order.json',
        '--prompt=FILE:p.jsonl',
        '--batch_size=1',
        '--out=o.json',
        code=1,
    )
    assert 'from 0 to 3, once; got 3 from 0 to 2' in p.stderr and '--- sample' not in p.stdout
    assert not (tmp_path / 'o.json').exists()


def test_batches_change_no_sample_and_watch_shows_the_first_of_each(
    ckpt, script, monkeypatch, tmp_path
):
    shown = []
    monkeypatch.setattr(
        'anyorder.pictures.watch.Watch.__call__', lambda self, *what: shown.append(what)
    )
    script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--length=4',
        '--n_samples=3',
        '--batch_size=2',
        '--watch',
        '--out=o.json',
    )
    samples = json.loads((tmp_path / 'o.json').read_text())['samples']
    assert [step for _, _, step, *_ in shown] == [0, 1, 2, 3] * 2
    assert [steps.count(None) for _, steps, *_ in shown] == [3, 2, 1, 0] * 2
    assert [tokens for tokens, _, step, *_ in shown if step == 3] == [
        samples[0]['tokens'],
        samples[2]['tokens'],
    ]
    assert [logprob for _, _, step, logprob, _ in shown if step == 3] == [
        samples[0]['logprob'],
        samples[2]['logprob'],
    ]
    script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--length=4',
        '--n_samples=3',
        '--out=p.json',
    )
    assert [
        (s['tokens'], s['order'], s['seed'])
        for s in json.loads((tmp_path / 'p.json').read_text())['samples']
    ] == [(s['tokens'], s['order'], s['seed']) for s in samples]


def test_samples_of_several_prompts_and_a_first_one_that_is_done_early(
    ckpt, script, monkeypatch, tmp_path
):
    shown = []
    monkeypatch.setattr(
        'anyorder.pictures.watch.Watch.__call__', lambda self, *what: shown.append(what)
    )
    (tmp_path / 'p.jsonl').write_text('{"prompt": "a[[1]]"}\n{"prompt": "b[[4]]"}\n')
    script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--prompt=FILE:p.jsonl',
        '--watch',
        '--out=o.json',
    )
    samples = json.loads((tmp_path / 'o.json').read_text())['samples']
    assert [s['prompt'] for s in samples] == ['a[[1]]'] * 2 + ['b[[4]]'] * 2
    assert [s['text'][0] for s in samples] == [*'aabb']
    assert [(tokens, step) for tokens, _, step, *_ in shown] == [(samples[0]['tokens'], 0)]


def test_lossless_samples_keep_their_drafts_for_those_who_look(ckpt, script, monkeypatch, tmp_path):
    def shown_or_not(*options):
        shown = []
        monkeypatch.setattr(
            'anyorder.pictures.watch.Watch.__call__', lambda self, *what: shown.append(what)
        )
        said.append(
            script(
                'sample.py',
                f'--ckpt={ckpt}',
                '--weights=raw',
                '--length=12',
                '--n_samples=3',
                '--batch_size=2',
                *options,
            ).stdout
        )
        return shown

    said = []
    shown_or_not('--unmask=lossless', '--out=o.json')
    samples = json.loads((tmp_path / 'o.json').read_text())['samples']
    assert (
        f'lossless with window 32: {36 / sum(s["passes"] for s in samples):.1f} tokens a pass'
        in said[0]
    )
    for s in samples:
        for step, history in zip(s['step'], s['drafts'], strict=True):
            since = [first for first, _ in history]
            assert since == sorted(set(since)) and all(first < step for first in since)
            assert all(a != b for (_, a), (_, b) in itertools.pairwise(history))
        assert sum(map(len, s['drafts'])) >= 12 - s['passes']  # all but the token that is sure
    assert samples[0]['drafts'] != samples[2]['drafts']
    shown = shown_or_not('--unmask=lossless', '--watch')
    last = [(tokens, drafts) for tokens, steps, _, _, drafts in shown if None not in steps]
    assert last == [(samples[r]['tokens'], samples[r]['drafts']) for r in (0, 2)]
    assert {drafts for *_, drafts in shown_or_not('--watch', '--out=o.json')} == {None}
    assert 'drafts' not in json.loads((tmp_path / 'o.json').read_text())['samples'][0]
    monkeypatch.setattr('anyorder.generation.scroll.Scroll.note_drafts', None)  # nobody looks
    shown_or_not('--unmask=lossless')


def test_command_scores_what_the_model_says(ckpt, script, tmp_path):
    ckpt_with_ema = tmp_path / 'judge.pt'
    judge = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(ckpt_with_ema, judge, EMA(judge, 0.9), tokenizer='bytes')
    (tmp_path / 'p.jsonl').write_text('{"prompt": "ab[[=cd]]e"}\n{"prompt": "[[=abcdefg]]"}\n')
    script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--prompt=FILE:p.jsonl',
        '--order=r2l',
        '--score',
        '--n_samples=1',
        '--out=o.json',
        '--html=o.html',
        '--watch',
        '--metrics',
        f'--judge={ckpt_with_ema}',
    )
    assert '<!doctype html>' in (tmp_path / 'o.html').read_text()
    result = json.loads((tmp_path / 'o.json').read_text())
    first, second = result['samples']
    texts = [torch.tensor([list(s)]) for s in (b'abcde', b'abcdefg')]
    nlls = [judge(s, sample_order(1, s.size(1), 'l2r'))[0].double() for s in texts]
    nats = float(nlls[0][2:4].sum() + nlls[1].sum())  # the blanks, given all before
    assert math.isclose(result['metrics']['judge']['perplexity'], math.exp(nats / 9), rel_tol=1e-4)
    assert result['metrics']['distinct_1'] == 7 / 9
    model = model_from_checkpoint(ckpt, 'raw').requires_grad_(False)
    nll = model(torch.tensor([list(b'abcde')]), torch.tensor([first['order']]))
    assert (
        first['text'] == 'abcde' and first['blanks'] == 2 and first['order'] == [4, 1, 0, 3, 2]
    )  # known ones first
    assert math.isclose(first['nats'], float(nll[0, 3:].sum()), rel_tol=1e-5)
    assert second['order'] == [6, 5, 4, 3, 2, 1, 0] and second['blanks'] == 7
    assert (
        second['prompt'] == '[[=abcdefg]]'
        and second['seed'] == first['seed'] + 1
        and result['order'] == 'r2l'
    )
    judged = result['metrics']['judge']
    assert judged['tokens'] == 9 and result['tokenizer'] == judged['tokenizer'] == 'bytes'


def test_the_checkpoint_says_what_the_name_of_an_order_means(script, tmp_path):
    """fixed and block have the seed and the block of the run; a family that is drawn differs from sample to sample."""
    run = {'order': 'block:5', 'order_seed': 3}
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'c.pt', model, tokenizer='bytes', config=run)
    (tmp_path / 'order.json').write_text(json.dumps(list(range(0, 12, 2)) + list(range(1, 12, 2))))

    def orders(name):
        script(
            'sample.py',
            '--ckpt=c.pt',
            '--weights=raw',
            f'--order={name}',
            '--length=12',
            '--out=o.json',
        )
        result = json.loads((tmp_path / 'o.json').read_text())
        return [s['order'] for s in result['samples']], result['order']

    own = sample_order(1, 12, 'block', seed=3, parameter=5)[0].tolist()
    assert orders('own') == (
        [own] * 2,
        {'kind': 'block', 'parameter': 5, 'seed': 3, 'length': None},
    )
    assert orders('block') == ([own] * 2, 'block')
    assert orders('fixed')[0] == [sample_order(1, 12, 'fixed', seed=3)[0].tolist()] * 2
    assert orders('r2l') == ([list(range(11, -1, -1))] * 2, 'r2l')
    assert orders('order.json')[0] == [[0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]] * 2
    assert all(orders(name)[0][0] != orders(name)[0][1] for name in ('random', 'margin'))


def test_options_reach_the_drawing(ckpt, script, tmp_path, monkeypatch):
    def sample(*options):
        script(
            'sample.py',
            f'--ckpt={ckpt}',
            '--weights=raw',
            '--length=9',
            '--n_samples=1',
            '--out=o.json',
            *options,
        )
        return json.loads((tmp_path / 'o.json').read_text())['samples'][0]

    plain = sample()
    greedy = sample('--temperature=0')['tokens']
    assert (
        greedy
        == sample('--top_k=1')['tokens']
        == sample('--top_p=1e-9')['tokens']
        != plain['tokens']
    )
    assert plain['tokens'] != sample('--seed=9')['tokens']
    assert (
        sorted(set(plain['step'])) == list(range(9))
        and len(set(sample('--n_steps=4')['step'])) == 4
    )
    steps = sample('--n_steps=4', '--schedule=cosine')['step']
    assert [steps.count(k) for k in range(4)] == [
        1,
        1,
        3,
        4,
    ]  # 9 (1 - cos(k pi / 8)) = 0.7, 2.6, 5.6, 9
    assert len(set(sample('--order=margin', '--threshold=0')['step'])) == 1
    assert sample('--order=margin', '--order_noise=9')['order'] != sample('--order=margin')['order']
    monkeypatch.setattr('anyorder.generation.fill.KVCache', None)
    assert sample('--use_cache=False')['tokens'] == plain['tokens']
