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


@pytest.fixture
def write(script, ckpt, tmp_path):
    """Run sample.py with these options. Return what it said, and the result that it wrote."""

    def run(*options):
        said = script('sample.py', f'--ckpt={ckpt}', '--weights=raw', '--out=o.json', *options)
        return said.stdout, json.loads((tmp_path / 'o.json').read_text())

    return run


@pytest.fixture
def shown(monkeypatch):
    """What --watch shows: a list of (tokens, steps, step, logprob)."""
    found = []
    monkeypatch.setattr(
        'anyorder.generation.watch.Watch.__call__', lambda self, *what: found.append(what)
    )
    return found


def test_samples_do_not_depend_on_their_number(write):
    said, one = write('--prompt=ab', '--n_steps=5', '--n_samples=1')
    _, three = write('--prompt=ab', '--n_steps=5', '--n_samples=3')
    for part in ('iteration 7', '5 steps for 30 tokens', ' parameters, 32 positions, bytes tokens'):
        assert part in said
    samples = three['samples']
    assert len(samples) == 3
    assert one['samples'][0]['tokens'] == samples[0]['tokens']
    assert samples[0]['tokens'] != samples[1]['tokens']
    assert [sample['seed'] for sample in samples] == [1337, 1338, 1339]
    last = samples[2]
    assert last['tokens'][:2] == [97, 98]
    assert last['order'][:2] == [0, 1]
    assert sorted(last['order']) == list(range(32))


@pytest.mark.parametrize(
    'args, said',
    [
        (['--temperature=-1'], 'temperature'),
        (['--top_logprobs=-1'], 'top_logprobs'),
        (['--top_logprobs=258'], 'top_logprobs'),
        (['--cfg_scale=-1'], 'cfg_scale'),
        (['--cfg_scale=1'], 'gives nothing'),
        (['--cfg_scale=1', '--prompt=a', '--length=33'], 'at most 32'),
        (['--cfg_scale=1', '--prompt=a[[..]]b', '--stop=c'], 'leave out stop'),
        (['--cfg_scale=1', '--prompt=a', '--revise=1'], 'revise'),
        (['--n_steps=0'], 'n_steps'),
        (['--n_samples=0'], 'n_samples'),
        (['--length=-1'], 'length'),
        (['--context=32'], 'context must be 1 to 31'),
        (['--prompt=a[[=b]]', '--score', '--stop=c'], 'leave out stop'),
        (['--stop=[]'], 'stop must be a text or a list'),
        (['--stop=["a", ""]'], 'leave out'),
        (['--stop=["a", "b"'], 'JSON list'),
        (['--order=up'], 'top_prob'),
        (['--order=block:99999999999999999999'], 'below'),
        (['--unmask=lossless:99999999999999999999'], 'below'),
        (['--length=99999999999999999999'], 'below'),
        (['--batch_size=0'], 'batch_size'),
        (['--order=margin:abc'], 'margin:abc'),
        (['--order=margins'], "'margins' is no order; the nearest is 'margin'"),
        (['--order=margin', '--threshold=.9'], 'margin:0.9'),
        (['--block_length=32'], 'margin/32'),
        (['--unmask=lossless', '--order=entropy'], 'wants an order that is given'),
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
        (['--metrics=x.pt'], 'x.pt'),
        (['--metrics=gpt2-large'], 'or download it and give its path'),
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
        ([f'--out={PUBLISHED}', f'--metrics={PUBLISHED}'], 'would overwrite'),
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

    n_calls = itertools.count(1)

    def interrupted(*args):
        if next(n_calls) == 3:
            raise KeyboardInterrupt
        return steps(*args)

    options = [f'--ckpt={ckpt}', '--weights=raw', '--length=4', '--n_samples=9', '--batch_size=2']
    config = configure(vars(sample), [*options, '--out=o.json'])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('anyorder.generation.way.steps', interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample.main(config)
    assert len(json.loads((tmp_path / 'o.json').read_text())['samples']) == 4


def test_an_order_that_does_not_fit_is_found_before_anything_is_written(ckpt, tmp_path, script):
    (tmp_path / 'order.json').write_text('[0, 2, 1]')
    (tmp_path / 'p.jsonl').write_text('{"prompt": "[[3]]"}\n{"prompt": "[[4]]"}\n')
    options = ['--order=order.json', '--prompt=FILE:p.jsonl', '--batch_size=1', '--out=o.json']
    p = script('sample.py', f'--ckpt={ckpt}', '--weights=raw', *options, code=1)
    assert 'from 0 to 3, once; got 3 from 0 to 2' in p.stderr
    assert '--- sample' not in p.stdout
    assert not (tmp_path / 'o.json').exists()


def test_batches_change_no_sample_and_watch_shows_the_first_of_each(write, shown):
    _, result = write('--length=4', '--n_samples=3', '--batch_size=2', '--watch')
    samples = result['samples']
    assert [step for _, _, step, _ in shown] == [0, 1, 2, 3] * 2
    assert [steps.count(None) for _, steps, _, _ in shown] == [3, 2, 1, 0] * 2
    last = [(tokens, logprob) for tokens, _, step, logprob in shown if step == 3]
    assert last == [(samples[r]['tokens'], samples[r]['logprob']) for r in (0, 2)]

    _, whole = write('--length=4', '--n_samples=3')
    for key in ('tokens', 'order', 'seed'):
        assert [s[key] for s in whole['samples']] == [s[key] for s in samples]


def test_samples_of_several_prompts_and_a_first_one_that_is_done_early(write, shown, tmp_path):
    (tmp_path / 'p.jsonl').write_text('{"prompt": "a[[1]]"}\n{"prompt": "b[[4]]"}\n')
    _, result = write('--prompt=FILE:p.jsonl', '--watch')
    samples = result['samples']
    assert [s['prompt'] for s in samples] == ['a[[1]]'] * 2 + ['b[[4]]'] * 2
    assert [s['text'][0] for s in samples] == [*'aabb']
    assert [(tokens, step) for tokens, _, step, *_ in shown] == [(samples[0]['tokens'], 0)]


def test_lossless_samples_count_their_passes(write):
    said, result = write('--unmask=lossless', '--length=12', '--n_samples=3')
    rate = 36 / sum(s['passes'] for s in result['samples'])
    assert f'lossless with window 32: {rate:.1f} tokens a pass' in said


def test_command_scores_what_the_model_says(write, ckpt, tmp_path):
    judge = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'judge.pt', judge, EMA(judge, 0.9), tokenizer='bytes')
    (tmp_path / 'p.jsonl').write_text('{"prompt": "ab[[=cd]]e"}\n{"prompt": "[[=abcdefg]]"}\n')
    how = ['--prompt=FILE:p.jsonl', '--order=r2l', '--score', '--n_samples=1', '--watch']
    _, result = write(*how, '--html=o.html', f'--metrics={tmp_path / "judge.pt"}')
    assert '<!doctype html>' in (tmp_path / 'o.html').read_text()
    assert result['order'] == 'r2l'
    assert result['tokenizer'] == 'bytes'

    # The known tokens are first, and the nats are the model's
    first, second = result['samples']
    model = model_from_checkpoint(ckpt, 'raw').requires_grad_(False)
    nll = model(torch.tensor([list(b'abcde')]), torch.tensor([first['order']]))
    assert first['text'] == 'abcde'
    assert first['blanks'] == 2
    assert first['order'] == [4, 1, 0, 3, 2]
    assert math.isclose(first['nats'], float(nll[0, 3:].sum()), rel_tol=1e-5)
    assert second['order'] == [6, 5, 4, 3, 2, 1, 0]
    assert second['blanks'] == 7
    assert second['prompt'] == '[[=abcdefg]]'
    assert second['seed'] == first['seed'] + 1

    # The judge reads the blanks from left to right, given all before
    texts = [torch.tensor([list(text)]) for text in (b'abcde', b'abcdefg')]
    nlls = [judge(text, sample_order(1, text.size(1), 'l2r'))[0].double() for text in texts]
    nats = float(nlls[0][2:4].sum() + nlls[1].sum())
    judged = result['metrics']['judge']
    assert math.isclose(judged['perplexity'], math.exp(nats / 9), rel_tol=1e-4)
    assert judged['tokens'] == 9
    assert judged['tokenizer'] == 'bytes'
    assert result['metrics']['distinct_1'] == 7 / 9


def test_the_checkpoint_says_what_the_name_of_an_order_means(script, tmp_path):
    """fixed and block have the seed and the block of the run; a family that is drawn differs from
    sample to sample."""
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    run = {'order': 'block:5@3'}
    save_checkpoint(tmp_path / 'c.pt', model, tokenizer='bytes', config=run)
    positions = [*range(0, 12, 2), *range(1, 12, 2)]
    (tmp_path / 'order.json').write_text(json.dumps(positions))

    def orders(name):
        options = ['--ckpt=c.pt', '--weights=raw', '--length=12', '--out=o.json']
        script('sample.py', *options, f'--order={name}')
        result = json.loads((tmp_path / 'o.json').read_text())
        return [s['order'] for s in result['samples']], result['order']

    own = sample_order(1, 12, 'block', seed=3, parameter=5)[0].tolist()
    fixed = sample_order(1, 12, 'fixed', seed=3)[0].tolist()
    named = {'kind': 'block', 'parameter': 5, 'seed': 3, 'length': None}
    assert orders('own') == ([own] * 2, named)
    assert orders('block') == ([own] * 2, 'block')
    assert orders('fixed')[0] == [fixed] * 2
    assert orders('r2l') == ([list(range(11, -1, -1))] * 2, 'r2l')
    assert orders('order.json')[0] == [positions] * 2
    for name in ('random', 'margin'):
        one, other = orders(name)[0]
        assert one != other


def test_options_reach_the_drawing(write):
    def sample(*options):
        _, result = write('--length=9', '--n_samples=1', *options)
        return result['samples'][0]

    plain = sample()
    greedy = sample('--temperature=0')['tokens']
    assert greedy != plain['tokens']
    assert greedy == sample('--top_k=1')['tokens']
    assert greedy == sample('--top_p=1e-9')['tokens']
    assert plain['tokens'] != sample('--seed=9')['tokens']
    assert sorted(set(plain['step'])) == list(range(9))
    assert len(set(sample('--n_steps=4')['step'])) == 4
    steps = sample('--n_steps=4', '--schedule=cosine')['step']
    # 9 (1 - cos(k pi / 8)) = 0.7, 2.6, 5.6, 9
    assert [steps.count(k) for k in range(4)] == [1, 1, 3, 4]
    assert len(set(sample('--order=margin:0')['step'])) == 1
    noisy = sample('--order=margin+9')
    assert noisy['order'] != sample('--order=margin')['order']
    guided = sample('--prompt=ab[[7]]', '--cfg_scale=3')
    assert guided['tokens'] != sample('--prompt=ab[[7]]')['tokens']


def test_the_likeliest_tokens_reach_the_table_the_file_and_the_page(write, tmp_path):
    prompt = '--prompt=ab[[3]]c'
    for options in (['--top_k=4'], ['--temperature=0']):
        said, result = write(prompt, *options, '--top_logprobs=2', '--html=o.html')
        page = (tmp_path / 'o.html').read_text()
        shown = json.loads(page.split('type="application/json">')[1].split('</script>')[0])
        sample = result['samples'][0]
        assert shown['samples'][0]['top'] == sample['top_logprobs']
        places = [place for place in sample['top_logprobs'] if place]
        assert len(places) == 3
        lines = said.splitlines()
        head = next(n for n, line in enumerate(lines) if line.startswith('position'))
        for line, place in zip(lines[head + 1 :], places):
            assert all(f'{one["logprob"]:.3f}' in line for one in place['top'])
