"""Masked models of others: each call of their networks by hand; their folders, the commands."""

import functools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import close, make_model, one_line, put, tokenizer_like

pytest.importorskip('transformers')

from masked_kinds import KINDS
from transformers import AutoTokenizer

from anyorder.checkpoint import digest, load_checkpoint, open_checkpoint
from anyorder.extras.hub.folders import read_weights
from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.extras.puzzles.solve import ids_of, open_puzzles
from anyorder.generation.fill import generate
from anyorder.machine.files import read_json
from anyorder.tokens.tokenizer import Bytes, get_tokenizer
from anyorder.writer import Writer
from configurator import Config
from model import KVCache

KNOWN = {  # the special tokens come last, in BERT's first
    'llada': MaskedConfig(40, 266, 260, banned=(261,), prefix=(261,)),
    'dream': MaskedConfig(2047, 263, 262, shift=True, banned=(261,), prefix=(261,)),
    # bytes stand for the vocabulary of GPT-2, a download
    'mdlm': MaskedConfig(38, 257, 50257, prefix=(256,), suffix=(256,)),
    'bert': MaskedConfig(40, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)),
}
KNOWN['modernbert'] = KNOWN['bert']


@pytest.fixture(scope='module')
def kinds(tmp_path_factory):
    """kinds(name): (oracle, folder, the opened folder, its model), made once."""

    @functools.cache
    def made(name):
        folder = tmp_path_factory.mktemp(name)
        oracle = KINDS[name](folder)
        checkpoint = opened(folder)
        return oracle, folder, checkpoint, checkpoint.model().requires_grad_(False)

    with pytest.MonkeyPatch.context() as patch:
        of_name = {'gpt2': Bytes()}.get
        patch.setattr('anyorder.extras.masked.families.get_tokenizer', of_name)
        yield made


@pytest.fixture
def bert(kinds):
    """A copy of the folder of a BERT."""
    return Path(shutil.copytree(kinds('bert')[1], 'bert'))


def opened(folder):
    return open_checkpoint(f'masked:{folder}')


def by_hand(oracle, c, tokens, visits, n_known):
    """Log-probabilities (n, V) of the visits of a text (n,), the first n_known of which are read.

    What stands around it, masks in the blanks, the shift, and no probability for tokens that are
    never written."""
    text = torch.full((len(visits),), c.mask_id)
    known = visits[:n_known]
    text[known] = tokens[known]
    logits = oracle(torch.tensor([*c.prefix, *text, *c.suffix]))
    places = torch.tensor(visits) + (len(c.prefix) - c.shift)
    banned = [token for token in {*c.banned, c.mask_id} if token < c.n_tokens]
    logits = logits[places, : c.n_tokens].index_fill(1, torch.tensor(banned).long(), -torch.inf)
    return logits.log_softmax(-1)


# (visits of a text, how many of them are known); no two rows swap places when sorted by length
ROWS = [
    ([3, 0, 6, 5, 1, 4, 2], 0),
    ([3, 0, 9, 5, 10, 1, 4, 2, 6, 8, 7], 4),
    ([4, 3, 0, 2, 5, 1], 3),
]


@pytest.mark.parametrize('kind', KINDS)
def test_a_folder_runs_none_of_its_code_and_a_call_is_that_of_its_authors_by_hand(kinds, kind):
    """Texts of unequal lengths, and their loss."""
    oracle, folder, checkpoint, model = kinds(kind)
    c = checkpoint.config
    assert c == KNOWN[kind]
    idx = torch.randint(5, 40, (3, 11), generator=torch.Generator().manual_seed(5))
    order = torch.tensor([visits + [*range(len(visits), 11)] for visits, _ in ROWS])
    how = {
        'n_known': torch.tensor([n for _, n in ROWS]),
        'n_targets': 3,
        'n_visits': torch.tensor([len(visits) for visits, _ in ROWS]),
    }
    logits = model.predict(idx, order, **how)
    laws = [by_hand(oracle, c, row, *how) for row, how in zip(idx, ROWS)]
    for found, law, (_, n) in zip(logits, laws, ROWS):
        close(found.log_softmax(-1), law[n : n + 3], 1e-4)  # Llama has float32 within
    nll = model(idx, order, how['n_known'], n_visits=how['n_visits'])
    for found, law, row, (visits, n) in zip(nll, laws, idx, ROWS):
        N = len(visits)
        nats = F.nll_loss(law, row[visits], reduction='none')[n:] * N / (N - n)
        close(found[:N], F.pad(nats, (n, 0)).to(logits.dtype), 1e-4)


# ---- any callable


def network_of(calls, n_tokens=6):
    """A callable network of logits that say what it was given, which `calls` keeps as digits."""

    def network(tokens):
        calls.append(' '.join(''.join(map(str, row)) for row in tokens.tolist()))
        one_hot = F.one_hot(tokens, 6).double()
        return SimpleNamespace(logits=3 * one_hot[..., :n_tokens])

    return network


def test_a_callable_sees_prefix_masks_and_suffix_and_rows_of_one_length_at_a_time():
    calls = []
    config = MaskedConfig(4, 6, mask_id=5, banned=(0,), prefix=(0, 1), suffix=(2,))
    model = MaskedModel(network_of(calls), config)
    assert not model.training
    assert MaskedModel(torch.nn.Linear(2, 2), config).training
    idx = torch.tensor([[3, 4, 3, 4], [4, 4, 3, 3]])
    order = torch.tensor([[2, 0, 1, 3], [1, 0, 2, 3]])
    logits = model.predict(idx, order, 2)
    of_a_mask = torch.tensor([-torch.inf, 0, 0, 0, 0, -torch.inf])
    assert torch.equal(logits, of_a_mask.double().expand(2, 2, -1))
    model.predict(idx, order, torch.tensor([1, 2]), 2, n_visits=torch.tensor([4, 3]))
    model.predict(idx, order, 1, 1, n_visits=3)  # all rows end early
    assert calls == ['0135352 0144552', '014452', '0155352', '015532 015452']


BAD_CALLS = {
    'wants a decoder': lambda m, idx, order: generate(m, idx, order, 0, unmask='lossless'),
    'has no cache': lambda m, *at: m.predict(*at, 1, cache=KVCache(make_model().config, 1)),
    'from 0 on': lambda m, idx, order: m.predict(idx, order.flip(1), 1, n_visits=2),
    r'got \(1, 4, 5\)': lambda m, *at: MaskedModel(network_of([], 5), m.config).predict(*at, 1),
    'wants a prefix': lambda *_: MaskedConfig(4, 6, 5, shift=True),
}


@pytest.mark.parametrize('said', BAD_CALLS)
def test_what_cannot_be_is_one_line(said):
    model = MaskedModel(network_of([]), MaskedConfig(4, 6, mask_id=5))
    with one_line(said):
        BAD_CALLS[said](model, torch.zeros(1, 4, dtype=torch.long), torch.arange(4)[None])


# ---- folders


def test_kept_answers_are_of_one_config_json_and_weights_have_older_names(bert):
    one = digest(opened(bert).model())
    put(bert / 'config.json', '{"layer_norm_eps": 0.1}')
    other = digest(opened(bert).model())
    assert other != one
    older = {}
    for name, p in read_weights(bert).items():
        name = name.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')
        name = name.replace('bert.embeddings.word_embeddings', 'cls.predictions.decoder')  # tied
        older[f'module.{name}'] = p
    (bert / 'model.safetensors').unlink()
    torch.save(older, bert / 'pytorch_model.bin')
    assert digest(opened(bert).model()) == other


def test_a_text_is_as_its_tokenizer_has_it_but_not_cut_nor_padded(bert):
    """Its last calls are kept in tokenizer.json. The token behind every text, which it may call its
    end, is never written."""
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.add_special_tokens({'bos_token': '[CLS]', 'eos_token': '[SEP]'})
    whole = opened(bert).tokenizer
    texts = [tokenizer.decode(range(5, 30)), tokenizer.decode(range(5, 9))]
    tokenizer(texts, truncation=True, max_length=8, padding='max_length')
    tokenizer.save_pretrained(bert)
    assert read_json(bert / 'tokenizer.json')['truncation']
    checkpoint = opened(bert)
    assert checkpoint.config == KNOWN['bert']
    assert checkpoint.tokenizer.eos is None
    for text in texts:
        assert checkpoint.tokenizer.encode(text) == whole.encode(text)
    assert checkpoint.tokenizer.encode_batch(texts) == whole.encode_batch(texts)


BAD = [  # (a kind and a file, what is put there in place of it or of its entries, a word)
    ('llada config.json', '{"n_layers": 1}', 'weights do not fit'),
    ('llada config.json', '{"include_qkv_bias": true}', 'include_qkv_bias'),
    ('llada config.json', '{"input_emb_norm": true}', 'input_emb_norm'),
    ('llada config.json', '{"rope_scaling": {"type": "linear", "factor": 2.0}}', 'rope_scaling'),
    ('llada config.json', '{"weight_tying": true}', 'weight_tying'),
    ('mdlm config.json', '{"time_conditioning": true}', 'time_conditioning'),
    ('bert config.json', '{"num_hidden_layers": 3}', '16 weights do not fit'),
    ('bert config.json', '{"intermediate_size": 20}', '6 weights do not fit'),
    ('bert config.json', '{"hidden_size": 15}', 'of the kind bert.*ValueError: The hidden size'),
    (
        'bert config.json',
        '{"quantization_config": {"quant_method": "gptq"}}',
        'quantization_config',
    ),
    ('bert config.json', '{"model_type": "gpt2"}', "'gpt2'.*may be llada, Dream, mdlm, bert"),
    ('bert config.json', '{"model_type": ["bert"]}', "'bert'"),
    ('bert config.json', '{"model_type": "llada"}', 'max_sequence_length'),
    ('bert tokenizer_config.json', '{"mask_token": null}', 'no mask token'),
    ('dream config.json', '{"hidden_size": "x"}', 'hidden_size'),
    ('dream config.json', '{"rope_parameters": {"rope_type": "yarn"}}', 'must be None'),
    ('bert model.safetensors', 'cut off', 'model.safetensors cannot be read as weights'),
    ('bert model.safetensors', '', '44 weights do not fit'),
    ('bert tokenizer.json', '', 'no vocabulary'),
    ('bert tokenizer.json', '[]', 'as a tokenizer without'),
    ('bert chat_template.jinja', "{{ ''.__class__.__mro__ }}", 'SecurityError'),
    ('bert chat_template.jinja', '{% for m in messages %}', 'SyntaxError'),
    ('bert chat_template.jinja', "{{ raise_exception('no system') }}", 'leave out.*no system'),
]


@pytest.mark.parametrize('place, text, said', BAD)
def test_a_folder_that_is_not_understood_is_one_line(kinds, place, text, said):
    kind, name = place.split()
    shutil.copytree(kinds(kind)[1], kind)
    put(Path(kind, name), text)
    with one_line(said):
        checkpoint = opened(kind)
        checkpoint.model()
        checkpoint.tokenizer.chat([{'role': 'user', 'content': 'x'}])


def test_what_a_folder_and_a_name_lack_is_said(bert, monkeypatch):
    with one_line('none cannot be read as what the hub has'):
        opened('none')
    with pytest.raises(FileNotFoundError, match=r'config\.json'):
        opened('.')
    with one_line(f'masked:{bert}$'):
        open_checkpoint(bert)
    with one_line('no checkpoint masked'):
        load_checkpoint(f'masked:{bert}')
    with monkeypatch.context() as patch:
        # whose decoders stay causal
        patch.setattr('transformers.__version__', '5.1.0')
        with one_line(r'5\.2 or newer'):
            opened(bert)


# ---- the commands, the Writer, the puzzles


def test_commands_take_a_masked_model(kinds, script):
    which = f'--ckpt=masked:{kinds("llada")[1]}'
    how = ['--prompt=the [[3]] value is [[2]].', '--order=margin', '--out=s.json', '--html=s.html']
    assert 'in 5 tokens' in script('sample.py', which, *how, '--metrics=text').stdout
    assert ' value is ' in read_json('s.json')['samples'][0]['text']
    Path('text.txt').write_text('If the value is 100, it is 10 times the other one. ' * 4)
    how = ['--datasets=text.txt', '--estimates=any,iw', '--orders=l2r', '--n_orders=2']
    which = f'--ckpt=masked:{kinds("bert")[1]}'
    assert 'unknown' in script('eval_ppl.py', which, *how, '--out=e.json').stderr
    row, *_ = read_json('e.json')['results']
    assert row['bytes'] is None


def test_puzzles_are_judged_in_the_symbols_of_the_task(kinds):
    checkpoint = kinds('bert')[2]
    n_rows = {'train': 1, 'val': 1, 'test': 4}
    prepare_puzzles('nae_sat', '.', n_rows=n_rows, n_latents=3, n_observations=1)
    options = Config(dataset='nae_sat', data_dir='.', split='test', n_puzzles=0, blanks='')
    puzzles = open_puzzles(checkpoint, options)
    assert ids_of(get_tokenizer('zebra4'), checkpoint.tokenizer) is None
    answers = torch.tensor(
        [checkpoint.tokenizer.encode(row) for row in ('0000', '0101', '0001', '01x1')]
    )
    for idx, right in ((puzzles.tokens, [1, 1, 1, 1]), (answers, [1, 1, 0, 0])):
        assert puzzles.right(idx)[:, 3].tolist() == right


def test_a_writer_says_what_is_unknown_and_begins_once(kinds, capsys):
    writer = Writer(f'masked:{kinds("bert")[1]}', device='cpu', dtype='float32')
    assert {p.dtype for p in writer.network.parameters()} == {torch.float32}
    assert kinds('bert')[3].network.dtype == torch.float64  # that of its file
    capsys.readouterr()  # what making it says
    how = {'length': 9, 'n_steps': 2, 'temperature': 0}
    texts = writer.infill(['aÄ[[2]]', 'b[[1]]c', 'Ö[[1]]'], **how)
    said = capsys.readouterr().err
    assert '2 of 5 tokens are unknown' in said
    assert "'Ä'" in said
    assert said.count('\n') == 1
    assert writer.infill('[CLS]b[[1]]c', **how) == texts[1]
    assert writer.logprob('[CLS]b[[=d]]') == writer.logprob('b[[=d]]')
    with one_line('can write'):
        writer.infill('a[[..]]', stop=['.', 'aÄ'])
    rewritten = tokenizer_like('bytes NFC')  # the sign for angstrom is a letter, in fewer bytes
    assert not rewritten.unspelt('a \u212b b', rewritten.spans('a \u212b b'))
    assert not capsys.readouterr().err
