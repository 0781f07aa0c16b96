"""Folders of the hub: ours as transformers loads them, and GPT-2 as one of ours."""

import functools
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import N_KNOWN, close, library, make_model, one_line, put
from oracle import NETWORKS

transformers = pytest.importorskip('transformers')

import train
from anyorder.checkpoint import Checkpoint, digest, model_from_checkpoint, save_checkpoint
from anyorder.extras.hub import __main__ as hub
from anyorder.extras.hub.exported import write_exported
from anyorder.extras.hub.folders import read_weights
from anyorder.extras.hub.gpt2 import our_sizes
from anyorder.extras.tokenizers.library import Library
from anyorder.tokens.meta import Meta
from anyorder.tokens.tokenizer import MAKERS, Symbols, tokenizer_of_set
from anyorder.training.start import open_start
from anyorder.writer import Writer
from configurator import configure
from model import EMA

pytestmark = pytest.mark.usefixtures('hub_modules')
save_file = pytest.importorskip('safetensors.torch').save_file
N = 9  # positions of make_model
V = 11  # tokens
LETTERS = {'tokenizer': 'own', 'n_tokens': V, 'eos': None, 'vocabulary': [*'abcdefghijk']}
FAMILIES = NETWORKS | {
    'no bias': dict(bias=False),
    'layer': dict(target_position='layer', rotary=True),
    'GPT-2': dict(target_position='input', gpt2_blocks=True),
}
KEPT = {
    'dataset': 'mine',
    'documents': 'apart',
    'order': 'block:3@7',
    'l2r_ratio': 0.25,
    'block_size': N,
    'source': 'hf:me/mine.2/en, fingerprint 12',
    'started_from': [{'name': 'gpt2'}, {'name': 'hf:me/one/ckpt.pt'}],
}
PRIVATE = {'out_dir': '/home/me/runs/x', 'data_dir': '/home/me/data', 'device': 'cuda:1'}
FILES = {
    'config.json',
    'counts.json',
    'tokenizer.json',
    'tokenizer_config.json',
    'model.safetensors',
    'model.py',
    'modeling_aogpt.py',
    'LICENSE-CODE',
}


@pytest.fixture(scope='module')
def family(tmp_path_factory):
    """family(name): (path of a checkpoint, folder that hub writes of it). Its average differs."""

    @functools.cache
    def made(name):
        path = str(tmp_path_factory.mktemp('family'))
        model = make_model(vocab_size=13, n_tokens=V, **FAMILIES[name]).float()
        ema = EMA(model, 0.9)
        for p in ema.model.parameters():
            p.data += 0.1
        kept = dict(iter_num=20, tokenizer='own', set=LETTERS, counts=2 ** torch.arange(30, 41))
        save_checkpoint(f'{path}/ckpt.pt', model, ema, config=KEPT | PRIVATE, **kept)
        hub.main(configure(vars(hub), [f'--ckpt={path}/ckpt.pt', f'--out={path}/hf']))
        return f'{path}/ckpt.pt', f'{path}/hf'

    return made


def view(folder, kind):
    """The view of an auto class that transformers loads from a folder."""
    return getattr(transformers, f'Auto{kind}').from_pretrained(folder, trust_remote_code=True)


@pytest.fixture
def views(family):
    """views(name, kind): (the network, a view of it), in float64."""

    def opened(name, kind='ModelForCausalLM'):
        ckpt, folder = family(name)
        model = model_from_checkpoint(ckpt).double().requires_grad_(False)
        return model, view(folder, kind).double()

    return opened


# ---- a folder is its checkpoint


@pytest.mark.parametrize('name', FAMILIES)
def test_a_folder_is_the_network_of_its_checkpoint_to_the_last_bit(family, batch, name):
    ckpt, folder = family(name)
    model = model_from_checkpoint(ckpt)
    has_blanks = model.slots_class.masked_loss
    n_known = N_KNOWN if has_blanks else None
    network = view(folder, 'Model')
    assert not network.training
    assert torch.equal(network(*batch, n_known), model(*batch, n_known))
    network.save_pretrained('.')  # as push_to_hub sends it, with its code
    assert digest(model_from_checkpoint('.')) == digest(model)
    assert {'model.py', 'modeling_aogpt.py'} <= {*os.listdir()}
    assert {*os.listdir(folder)} == FILES | (set() if has_blanks else {'generation_config.json'})
    old = Checkpoint(ckpt)
    new = Checkpoint(folder)
    assert (new.weights, new.iter_num, new.order, new.run) == ('ema', 20, old.order, KEPT)
    assert torch.equal(new.counts, old.counts)


def test_commands_take_a_folder_and_run_none_of_its_code(family, script):
    ckpt, _ = family('decoder')
    said = script('anyorder.extras.hub', f'--ckpt={ckpt}', '--out=hf', '--weights=raw').stdout
    assert digest(model_from_checkpoint(ckpt, 'raw')) in said
    for name in ('model.py', 'modeling_aogpt.py'):
        Path('hf', name).write_text('raise SystemExit("code of the folder has run")')
    config, opened = open_start(configure(vars(train), ['--init_from=hf']))
    assert (opened.weights, config.block_size) == ('raw', N)
    assert digest(Writer('hf').model) in said


def test_a_folder_is_written_whole_or_not_at_all(family, script, monkeypatch):
    ckpt, folder = family('decoder')
    os.mkdir('mine')
    Path('mine/notes.txt').write_text('mine')

    def full(*_):
        open('/dev/full', 'wb', 0).write(b'0')

    for said, *options in (
        ('mine is not empty', '--out=mine'),
        ('name a folder', '--out='),
        ('not raw', f'--ckpt={folder}', '--out=raw', '--weights=raw'),
        ('No space', '--out=hf'),
    ):
        if said == 'No space':
            monkeypatch.setattr('shutil.copyfile', full)
        ran = script('anyorder.extras.hub', f'--ckpt={ckpt}', *options, code=1)
        assert said in ran.stderr
        assert [files for _, _, files in os.walk('.')] == [[], ['notes.txt']]


# ---- left to right, in blanks


@pytest.mark.parametrize('name', ['decoder', 'no bias', 'GPT-2', 'two streams'])
def test_left_to_right_each_column_predicts_the_next_token(views, batch, name):
    """So do the head and the hidden states that TRL multiplies by itself."""
    model, causal = views(name)
    idx, _ = batch
    order = torch.arange(N).expand(5, -1)
    logp = model.predict(idx, order, N - 1, N - 1, first=1)[..., :V].log_softmax(-1)
    nll = model(idx, order)[:, 1:]
    unused = {'inputs_embeds': None, 'output_attentions': False}  # as peft and trainers pass
    found = causal(idx, labels=idx, **unused)
    close(found.loss, nll.mean())
    close(causal(idx, labels=idx, num_items_in_batch=torch.tensor(80)).loss, nll.sum() / 80)
    completion = idx.index_fill(1, torch.arange(4), -100)  # whose prompt is not learned
    close(causal(idx, labels=completion).loss, nll[:, 3:].mean())
    head = causal.get_output_embeddings()
    hidden = causal.base_model(input_ids=idx, use_cache=False).last_hidden_state
    for logits in (found.logits, hidden @ head.weight.T + head.bias):
        close(logits[:, :-1].log_softmax(-1)[..., :V], logp)


@pytest.mark.parametrize('name', ['decoder', 'encoder', 'mixed'])
def test_blanks_are_predicted_given_all_else(views, idx, order, name):
    model, masked = views(name, 'ModelForMaskedLM')
    known = torch.tensor([0, 1, 3, 5, 9])
    blank = order.argsort(1) >= known[:, None]
    labels = idx.index_fill(1, torch.arange(2), -100)  # which are not learned
    found = masked(idx.masked_fill(blank, V), labels=labels)
    close(found.loss, F.cross_entropy(found.logits[blank], labels[blank]))
    order = blank.int().argsort(dim=1, stable=True)
    for r, k in enumerate(known[:4]):
        own = model.predict(idx[r : r + 1], order[r : r + 1], k[None])
        close(found.logits[r, order[r, k:]], own[0, :, :V])
    logits = found.logits[~blank]
    assert torch.equal(logits.exp(), F.one_hot(idx[~blank], V).double())


@pytest.mark.parametrize(
    'name, kind', [('decoder', 'CausalLM'), ('two streams', 'CausalLM'), ('mixed', 'MaskedLM')]
)
def test_padding_at_either_end_changes_nothing(views, batch, name, kind):
    """A batch may be wider than the model is long."""
    _, padded_by = views(name, f'ModelFor{kind}')
    idx, order = batch
    if kind == 'MaskedLM':
        idx = idx.masked_fill(order % 3 == 1, V)
    n = torch.tensor([[8], [1], [5], [4], [9]])
    column = torch.arange(13)
    shown = (column >= 3) & (column < 3 + n)
    padded = torch.full((5, 13), V)
    padded[shown] = idx[column[:N] < n]
    found = padded_by(padded, attention_mask=shown.int()).logits
    for r in range(5):
        close(found[r, shown[r]], padded_by(idx[r : r + 1, : n[r]]).logits[0])


# ---- generate, and the cache

PROMPTS = torch.tensor([[0, 0, 3], [5, 1, 6], [0, 0, 0]])  # the last one is empty
SHOWN = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 0]])
GREEDY = dict(do_sample=False)
# what this transformers calls the cache
FIELDS = transformers.modeling_outputs.CausalLMOutputWithPast.__dataclass_fields__
CACHE = 'cache' if 'cache' in FIELDS else 'past_key_values'


def widths(view):
    """A list to which each call of the first block's attention adds the number of its slots."""
    found = []
    attention = view.network.transformer.h[0].attn
    attention.register_forward_pre_hook(lambda _, args: found.append(args[0].size(1)))
    return found


@pytest.mark.parametrize('name', ['decoder', 'two streams'])
@pytest.mark.parametrize('how', [GREEDY, dict(do_sample=True, top_k=0), dict(num_beams=3)])
def test_generate_with_the_cache_is_without_it_and_alone(views, name, how):
    _, causal = views(name)
    slots = widths(causal)

    def written(prompts=PROMPTS, shown=SHOWN, **more):
        torch.manual_seed(0)
        slots.clear()
        return causal.generate(prompts, attention_mask=shown, max_new_tokens=6, **how, **more)

    cached = written()
    if name == 'decoder':
        assert slots == [4, 1, 1, 1, 1, 1]
    assert torch.equal(written(use_cache=False), cached)
    if how == GREEDY:
        for r, start in enumerate((2, 0, 3)):
            assert torch.equal(written(PROMPTS[r : r + 1, start:], None)[0], cached[r, start:])


def test_a_cache_comes_back_with_more_text(views):
    """To generate, as chat loops do, with the whole text; to the model with what is new."""
    _, causal = views('decoder')

    def written(text, n, **how):
        shown = F.pad(SHOWN[:2], (0, text.size(1) - 3), value=1)
        more = dict(max_new_tokens=n, return_dict_in_generate=True, **GREEDY)
        return causal.generate(text, attention_mask=shown, **more, **how)

    first = written(PROMPTS[:2], 2)
    text = first.sequences
    cache = {CACHE: first[CACHE]}
    with one_line('whole text of the cache'):
        written(text.flip(1), 2, **cache)
    with one_line('must be the cache'):
        causal(text[:1], past_key_values=first[CACHE])
    longer = torch.cat([text, text[:, :1]], 1)
    second = written(longer, 2, **cache).sequences
    assert torch.equal(second, written(longer, 2, use_cache=False).sequences)
    assert torch.equal(written(second[:, :-1], 1, **cache).sequences, second)


def test_checkpointing_computes_each_block_twice(views, batch):
    _, causal = views('decoder')
    word = 'activation' if hasattr(causal, 'activation_checkpointing_enable') else 'gradient'
    getattr(causal.train(), f'{word}_checkpointing_enable')()
    slots = widths(causal)
    causal(batch[0], labels=batch[0]).loss.backward()
    assert slots == [N, N]


BAD = [  # (family, view, arguments of a call, a word)
    ('decoder', 'CausalLM', dict(inputs_embeds=torch.zeros(3, 2, 16)), 'inputs_embeds'),
    ('encoder', 'MaskedLM', dict(output_attentions=True), 'output_attentions'),
    (
        'decoder',
        'CausalLM',
        dict(attention_mask=SHOWN.flip(1) + PROMPTS),
        'hide the ends',
    ),  # a hole
    ('decoder', 'CausalLM', dict(input_ids=PROMPTS.repeat(1, 4)), 'at most 9'),
    ('encoder', 'CausalLM', {}, 'MaskedLM'),
]


@pytest.mark.parametrize('name, kind, given, said', BAD)
def test_what_a_view_cannot_do_is_one_line(views, name, kind, given, said):
    with one_line(said):
        views(name, f'ModelFor{kind}')[1](**{'input_ids': PROMPTS} | given)


def test_what_transformers_would_do_is_refused_or_ours(views):
    _, causal = views('decoder')
    with one_line(f'{V} tokens'):
        causal.resize_token_embeddings(20)
    with one_line(f'max_length={N}'):
        causal.generate(PROMPTS, max_new_tokens=7, **GREEDY)
    causal.config.model_args['gate_init'] = 1.0  # a new network begins as ours
    new = transformers.AutoModel.from_config(causal.config, trust_remote_code=True).network
    bias = new.transformer.h[1].adaLN[1].bias
    assert bias.view(6, -1).mean(1).tolist() == [0, 0, 1, 0, 0, 1]


# ---- tokenizers

SENTENCES = (
    'A né\n  x’s 12\t日本 🙂',
    " it's 1234567 winds\n\n  of rain. \r\n  ",
    'a$\n b$',
    '   ',
)
# names, the one that ends a row, and whether transformers can have this end
NAMES = [
    ('C4 C#4 rest .*', None, True),
    ('C4 end rest', 1, True),
    ('<|pad|> x<|mask|> x end y', 3, True),
    ('C4 C4. rest x', 0, False),
    ('0 1 2 3 4 5 6 7 8 9 10 11', 11, True),
    ('0 1 2 3 4 5 6 7 8 9 10 11', 1, False),
]
SETS = [(Meta(tokenizer=name), True) for name in ('bytes', 'gpt2', *MAKERS)]
for names, eos, end in NAMES:
    kind = Meta('', 'own', len(names.split()), eos, vocabulary=names.split())
    SETS += [(kind, end)]


def learned():
    """The set of a tokenizer that was learned, of which the last tokens are special."""
    backend = library('texts')
    backend.add_special_tokens(['<|endoftext|>', '<|mask|>', '<|pad|>'])
    ours = Library.of_file('mine', backend.to_str())
    return Meta('', 'mine', ours.n_tokens, ours.eos, tokenizer_file=ours.file)


def write(model, kind):
    """Export a model with the tokenizer of this set into the working folder."""
    entries = {'tokenizer': kind.tokenizer, 'set': asdict(kind)}
    write_exported('.', model.float(), entries, tokenizer_of_set(kind), 'raw')


@pytest.mark.parametrize('kind, end', [*SETS, (None, True)])
def test_a_tokenizer_has_the_same_ids_and_decodes_any(kind, end):
    kind = kind or learned()
    texts = SENTENCES
    try:
        ours = tokenizer_of_set(kind)
        ours.encode('')
    except ValueError as e:
        pytest.skip(str(e))
    n = ours.n_tokens
    write(make_model(vocab_size=n), kind)
    theirs = view('.', 'Tokenizer')
    ids = torch.randint(n, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    assert theirs.decode(ids) == ours.decode(ids)
    if isinstance(ours, Symbols):
        texts = [ours.decode(range(n))]
        with pytest.raises(Exception, match='UNK'):
            theirs('?')
    for text in texts:
        assert theirs(text)['input_ids'] == ours.encode(text)
    assert theirs.eos_token_id == (ours.eos if end else None)
    assert (theirs.mask_token_id, theirs.pad_token_id, len(theirs)) == (n, n + 1, n + 2)
    assert (theirs.model_max_length, theirs.padding_side) == (N - 1, 'left')
    assert Checkpoint('.').tokenizer.identity == ours.identity


def test_what_transformers_cannot_have_with_the_same_ids_is_left_out():
    kind = learned()
    parts = json.loads(kind.tokenizer_file)
    parts['model']['vocab']['late'] = 310  # ids between are nobody's
    kind = replace(kind, tokenizer_file=json.dumps(parts), n_tokens=311)
    write(make_model(vocab_size=311), kind)
    assert 'tokenizer.json' not in os.listdir()


# ---- what a folder of a model of text does by default


def test_it_writes_by_its_own_law_and_pads_what_ends():
    """Unless a file says otherwise. Padding has an id behind the vocabulary, is never drawn and
    changes no other text."""
    write(make_model(vocab_size=257, block_size=24), Meta(tokenizer='bytes'))
    causal = view('.', 'ModelForCausalLM')
    said = view('.', 'Config').to_dict() | causal.generation_config.to_dict()
    law = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_length=24)
    law |= dict(bos_token_id=256, eos_token_id=256, pad_token_id=258)
    assert law.items() <= said.items()
    tokenizer = view('.', 'Tokenizer')
    texts = tokenizer(['ab', 'abcdef', 'q'], padding=True, return_tensors='pt')
    how = dict(max_new_tokens=9, **GREEDY)
    whole = causal.generate(**texts, **how)[:, 6:].tolist()
    end = whole[0][2]  # ends the first text, and may end others
    found = causal.generate(**texts, eos_token_id=end, **how)[:, 6:]
    for row, kept in zip(found.tolist(), whole):
        n = [*kept, end].index(end) + 1
        assert row == (kept[:n] + [258] * 9)[: len(row)]


# ---- GPT-2 of others

T = 7  # positions
# as long as the block, with an end of text
TEXT = torch.tensor([[464, 50256, 11, 0, 50255, 464, 7]])


def gpt2(activation='gelu_new'):
    """A GPT-2 of transformers with large and random weights."""
    torch.manual_seed(1)
    sizes = dict(n_positions=T, n_embd=8, n_head=2, n_layer=2)
    config = transformers.GPT2Config(**sizes, activation_function=activation)
    network = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    for p in network.parameters():
        p += 0.5 * torch.randn_like(p)
    return network


@pytest.fixture
def gpt2_folder():
    """The folder of a GPT-2."""
    gpt2().save_pretrained('gpt2')
    return Path('gpt2')


@pytest.mark.parametrize('activation', ['gelu_new', 'gelu', 'gelu_pytorch_tanh'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_left_to_right_it_is_gpt2(activation, dtype):
    """In any order it begins as a GPT-2 that is told no target. A large file is in parts."""
    network = gpt2(activation).to(dtype)
    network.save_pretrained('.', max_shard_size='1MB')
    start = F.pad(TEXT[:, :-1], (1, 0), value=50256)
    expected = F.cross_entropy(network.double()(start).logits[0], TEXT[0], reduction='none')
    model = model_from_checkpoint('.').double()
    found = model(TEXT, torch.arange(T)[None])[0]
    close(found, expected)
    assert not model.transformer.wtpe.weight.any()
    row = model.transformer.wpe.weight
    assert torch.equal(row[T], row[T - 1])


def test_sizes_that_a_config_leaves_out_are_those_of_transformers():
    assert our_sizes({}) == our_sizes(transformers.GPT2Config().to_dict())


@pytest.mark.parametrize('wrapper', ['', '_orig_mod.', 'module.transformer.'])
def test_names_of_gpt2_may_be_any_and_the_embedding_that_of_the_head(gpt2_folder, wrapper):
    usual = digest(model_from_checkpoint(gpt2_folder))
    weights = {'transformer.h.0.attn.bias': torch.ones(1, 1).bool(), **read_weights(gpt2_folder)}
    weights['lm_head.weight'] = weights.pop('transformer.wte.weight')
    weights = {name.replace('transformer.', wrapper): p for name, p in weights.items()}
    (gpt2_folder / WEIGHTS).unlink()
    file = gpt2_folder / 'pytorch_model.bin'
    torch.save(weights, file, _use_new_zipfile_serialization=False)  # as the oldest are
    assert digest(model_from_checkpoint(gpt2_folder)) == usual


# ---- folders that are not whole, or of another network

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
BAD_FOLDERS = [  # (whose file, what is put there in place of it or of its entries, a word)
    ('ours config.json', '{"model_args": null}', 'model_args'),
    ('ours config.json', '{"model_args": [1]}', 'model_args'),
    ('ours counts.json', '{"counts": "1"}', 'counts'),
    (
        'ours config.json',
        '{"model_args": {"block_size": 8, "vocab_size": 13, "n_tokens": 11}}',
        'shape',
    ),
    ('ours config.json', '{"set": {"tokenizer": "bytes"}}', 'bytes has 257'),
    ('ours config.json', '{"model_type": "bert"}', 'masked:'),
    ('ours model.safetensors', '', 'no weights of an AO-GPT'),
    ('gpt2 config.json', '{"model_type": "llama"}', "'llama'"),
    ('gpt2 config.json', '{"activation_function": "relu"}', "'relu'"),
    ('gpt2 config.json', '{"layer_norm_epsilon": 1e-6}', 'epsilon'),
    ('gpt2 config.json', '{"n_positions": 8}', 'transformer.wpe'),
    ('gpt2 config.json', '{"n_layer": "2"}', 'n_layer'),
    ('gpt2 vocab.json', '{"a": 0}', 'other tokens'),
    ('gpt2 tokenizer.json', '{"model": 1}', 'tokenizer.json'),
    ('gpt2 model.safetensors', 'cut off', 'cannot be read as weights'),
    ('gpt2 model.safetensors', '', 'no weights of a GPT-2'),
    ('gpt2 model.safetensors.index.json', '{"weight_map": [1]}', 'weight_map'),
    ('gpt2 transformer.wte.weight', '50304', '50,304 rows'),
    ('gpt2 lm_head.weight', '50257', 'two different weights transformer.wte'),
]


@pytest.mark.parametrize('place, text, said', BAD_FOLDERS)
def test_a_folder_that_is_not_understood_is_one_line(family, gpt2_folder, place, text, said):
    whose, name = place.split()
    shutil.copytree(family('decoder')[1], 'ours')
    if name.endswith('.weight'):
        weights = read_weights(whose) | {name: torch.zeros(int(text), 8)}
        save_file(weights, gpt2_folder / WEIGHTS)
    put(Path(whose, name), text)
    if name == INDEX:
        (gpt2_folder / WEIGHTS).unlink()
    with one_line(said):
        model_from_checkpoint(whose)
        print(Checkpoint(whose).tokenizer)
