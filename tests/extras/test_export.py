"""What transformers loads from a folder of hub: the network to the last bit, its views."""

import json

import pytest
import torch
import torch.nn.functional as F
from conftest import make_model

from anyorder.checkpoint import digest, model_from_checkpoint, save_checkpoint
from anyorder.extras.hub.exported import write_exported
from anyorder.extras.hub.tokenizer_files import tokenizer_files
from anyorder.tokens.libraries import Library, Tiktoken, train_bpe
from anyorder.tokens.tokenizers import MAKERS, TEXT, get_tokenizer, tokenizer_of_set
from model import EMA

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.usefixtures('hub_modules')
N = 9  # as make_model has them
V = 11


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.fixture
def views(tmp_path):
    """views(**sizes) exports a small model. Returns the model in float64 and load.

    load(name) is the view of an auto class, e.g. of 'CausalLM', in float64."""

    def export(**sizes):
        model = make_model(**sizes).float()
        (tmp_path / 'hf').mkdir()
        write_exported(tmp_path / 'hf', model, {}, None, 'ema')

        def load(name='', dtype=torch.float64, **how):
            auto = getattr(transformers, f'AutoModelFor{name}' if name else 'AutoModel')
            return auto.from_pretrained(tmp_path / 'hf', trust_remote_code=True, **how).to(dtype)

        return model.double(), load

    return export


def count_attention(view, monkeypatch):
    """A list to which each call of attention adds the number of its slots."""
    attention = type(view.network.transformer.h[0].attn)
    attend = attention.attend
    widths = []

    def counted(self, q, *rest):
        widths.append(q.size(1))
        return attend(self, q, *rest)

    monkeypatch.setattr(attention, 'attend', counted)
    return widths


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(bias=False, n_tokens=7),
        dict(attention='bidirectional'),
        dict(attention='mixed'),
        dict(target_position='two_stream'),
        dict(target_position='input', gpt2_blocks=True),
        dict(rotary=True),
        dict(target_position='layer'),
    ],
)
def test_it_is_the_network_to_the_last_bit(views, batch, tmp_path, sizes):
    model, load = views(**sizes)
    model = model.float()
    network = load(dtype=torch.float32)
    idx, order = batch
    idx = idx.clamp(max=model.config.n_real - 1)
    known = torch.tensor([0, 1, 3, 5, 8])
    n_known = known if model.slots.masked_loss else None
    nll = network(input_ids=idx, order=order, n_known=n_known)
    assert torch.equal(nll, model(idx, order, n_known))
    assert torch.equal(network.predict(idx, order, known), model.predict(idx, order, known))
    assert not network.training
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert digest(network.network) == digest(model_from_checkpoint(tmp_path / 'hf'))


def test_a_new_network_begins_as_ours(views):
    _, load = views(gate_init=1.0)
    network = transformers.AutoModel.from_config(load().config, trust_remote_code=True).network
    bias = network.transformer.h[1].adaLN[1].bias
    assert bias.view(6, -1).mean(1).tolist() == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize('sizes', [dict(), dict(target_position='input', gpt2_blocks=True)])
def test_what_transformers_saves_comes_back(views, tmp_path, sizes):
    model, load = views(**sizes)
    load('CausalLM', torch.float32).save_pretrained(tmp_path / 'again')
    assert digest(model_from_checkpoint(tmp_path / 'again')) == digest(model.float())


@pytest.mark.parametrize('sizes', [dict(), dict(target_position='two_stream')])
def test_left_to_right_each_column_predicts_the_next_token(views, batch, sizes):
    model, load = views(**sizes)
    causal = load('CausalLM')
    idx, _ = batch
    nll = model(idx, torch.arange(N).expand(5, -1))
    found = causal(idx, labels=idx)
    of_next = found.logits[:, :-1].log_softmax(-1).gather(-1, idx[:, 1:, None])[..., 0]
    same(-of_next, nll[:, 1:])
    same(found.loss, nll[:, 1:].mean())
    no_position_is_left = model.lm_head.bias.expand(5, -1)
    assert torch.equal(found.logits[:, -1], no_position_is_left)
    labels = idx.masked_fill(torch.arange(N) != 4, -100)
    same(causal(idx, labels=labels).loss, nll[:, 4].mean())


def place_rows(idx, places, width, padding):
    """Tokens (B, width) and their mask: the first n tokens of row r stand from `start` on.

    places  (start, n) of each row"""
    padded = torch.full((len(places), width), padding)
    shown = torch.zeros_like(padded)
    for r, (start, n) in enumerate(places):
        padded[r, start : start + n] = idx[r, :n]
        shown[r, start : start + n] = 1
    return padded, shown


@pytest.mark.parametrize('left', [0, 3])
def test_padding_at_either_end_changes_nothing(views, batch, left):
    """A row has as many tokens as alone; a padded batch may be wider than the model is long."""
    _, load = views()
    causal = load('CausalLM')
    idx, _ = batch
    places = [(left, n) for n in (8, 1, 5, 4, 8)]
    padded, mask = place_rows(idx, places, 13, 10)
    found = causal(padded, attention_mask=mask).logits
    for r, (start, n) in enumerate(places):
        alone = causal(idx[r : r + 1, :n]).logits[0]
        same(found[r, start : start + n], alone)


def test_a_column_before_a_text_is_given_none_and_no_column_within(views, batch):
    model, load = views()
    causal = load('CausalLM')
    idx, _ = batch
    padded, mask = place_rows(idx, [(3, n) for n in (8, 0, 5, 4, 8)], 13, 10)
    first = model.predict(idx, torch.arange(1).expand(5, -1), 0)
    found = causal(padded, attention_mask=mask).logits
    torch.testing.assert_close(found[1], first[1].expand(13, -1))
    hidden_within = mask.clone()
    hidden_within[0, 5] = 0
    said = 'attention_mask must have a column for each token, .* hide the ends'
    for wrong in (hidden_within, hidden_within[:, 1:]):  # the second is narrower than the text
        with pytest.raises(ValueError, match=said):
            causal(padded, attention_mask=wrong)


@pytest.mark.parametrize(
    'sizes', [dict(n_tokens=7), dict(n_tokens=7, target_position='input', gpt2_blocks=True)]
)
def test_losses_are_over_the_real_tokens(views, batch, sizes):
    """Smoothing, KL, and the head and the hidden states that TRL multiplies by itself."""
    model, load = views(**sizes)
    causal = load('CausalLM')
    masked = load('MaskedLM')
    idx = batch[0].clamp(max=6)
    order = torch.arange(N).expand(5, -1)
    logp = model.predict(idx, order, N - 1, N, first=0)[..., :7].log_softmax(-1)[:, 1:]
    of_labels = logp.gather(-1, idx[:, 1:, None])

    logits = causal(idx).logits
    smooth = F.cross_entropy(logits[:, :-1].transpose(1, 2), idx[:, 1:], label_smoothing=0.1)
    same(smooth, -0.9 * of_labels.mean() - 0.1 * logp.mean())
    blanks = idx.masked_fill(order % 2 == 0, 7)
    for found in (logits, masked(blanks).logits):
        q = found.log_softmax(-1)
        assert F.kl_div(q, q, reduction='sum', log_target=True) == 0
        assert found.size(-1) == causal.config.vocab_size == 7

    head = causal.get_output_embeddings()
    hidden = causal.base_model(input_ids=idx, use_cache=False).last_hidden_state
    theirs = (hidden @ head.weight.T + head.bias).log_softmax(-1)[:, :-1]
    same(theirs[..., :7], logp)
    assert theirs[..., 7:].exp().eq(0).all()
    assert head.weight.shape == model.lm_head.weight.shape
    loss = causal(idx, labels=idx, num_items_in_batch=torch.tensor(80)).loss
    same(loss, -of_labels.sum() / 80)


SILENT = dict(inputs_embeds=None, output_attentions=False, return_dict=None)


def test_arguments_that_say_nothing_change_nothing(views, batch):
    _, load = views()
    causal = load('CausalLM')
    masked = load('MaskedLM')
    idx, _ = batch
    assert torch.equal(masked(idx, **SILENT).logits, masked(idx).logits)
    shown = torch.ones(5, N).tril(3)
    logits = causal(idx, attention_mask=shown).logits
    found = causal(idx, attention_mask=shown, **SILENT).logits
    assert torch.equal(found, logits)
    some = causal(idx, shown, return_dict=False, logits_to_keep=2)[0]
    same(some, logits[:, -2:])
    assert causal.get_input_embeddings().weight.shape == causal.lm_head.weight.shape


@pytest.mark.parametrize(
    'name, argument, given',
    [
        ('CausalLM', 'inputs_embeds', torch.zeros(5, N, 16)),
        ('MaskedLM', 'output_attentions', True),
        ('CausalLM', 'output_hidden_states', True),
        ('MaskedLM', 'cu_seq_lens_q', torch.arange(3)),
    ],
)
def test_arguments_of_other_models_are_refused(views, batch, name, argument, given):
    _, load = views()
    said = f'{argument} must be left out: an AO-GPT reads input_ids'
    with pytest.raises(ValueError, match=said):
        load(name)(input_ids=batch[0], **{argument: given})


def test_packing_and_other_vocabularies_are_refused(views, batch):
    _, load = views()
    causal = load('CausalLM')
    shown = torch.ones(5, N).tril(3)
    place = torch.arange(N).expand(5, -1)
    with pytest.raises(ValueError, match='position_ids must be left out: .* one text a row'):
        causal(batch[0], attention_mask=shown, position_ids=place % 3)
    with pytest.raises(ValueError, match=f'the vocabulary must keep its {V} tokens'):
        causal.resize_token_embeddings(20)


def test_attention_is_sdpa(views):
    _, load = views()
    assert load('CausalLM', attn_implementation='sdpa').config._attn_implementation == 'sdpa'
    with pytest.raises(ValueError, match='does not support Flash Attention 2'):
        load('CausalLM', attn_implementation='flash_attention_2')


@pytest.mark.parametrize('name', ['CausalLM', 'MaskedLM'])
def test_checkpointing_computes_each_block_twice(views, batch, monkeypatch, name):
    _, load = views()
    view = load(name).train()
    labels, order = batch
    idx = labels
    if name == 'MaskedLM':
        idx = labels.masked_fill(order % 2 == 0, V)
    calls = count_attention(view, monkeypatch)

    def gradients():
        calls.clear()
        view.zero_grad()
        view(idx, labels=labels).loss.backward()
        return [p.grad for p in view.parameters() if p.grad is not None]

    once = gradients()
    assert len(calls) == 2
    kind = 'activation' if hasattr(view, 'activation_checkpointing_enable') else 'gradient'
    getattr(view, f'{kind}_checkpointing_enable')()
    twice = gradients()
    assert len(calls) == 4
    assert all(torch.equal(a, b) for a, b in zip(once, twice))
    getattr(view, f'{kind}_checkpointing_disable')()
    gradients()
    assert len(calls) == 2


PROMPTS = torch.tensor([[0, 0, 3], [5, 1, 7]])
SHOWN = torch.tensor([[0, 0, 1], [1, 1, 1]])
TWO_MORE = dict(do_sample=False, max_new_tokens=2)
# what this transformers calls the cache
FIELDS = transformers.modeling_outputs.CausalLMOutputWithPast.__dataclass_fields__
CACHE = 'cache' if 'cache' in FIELDS else 'past_key_values'


@pytest.fixture
def chat(views):
    """(left-to-right view, texts of 5 tokens that it has written, their cache)."""
    _, load = views()
    causal = load('CausalLM')
    out = causal.generate(PROMPTS, attention_mask=SHOWN, return_dict_in_generate=True, **TWO_MORE)
    return causal, out.sequences, out[CACHE]


def test_a_cache_comes_back_to_generate_with_more_text(chat):
    """As chat loops do, with the whole text."""
    causal, written, cache = chat
    longer = torch.cat([written, torch.tensor([[4, 2], [6, 6]])], 1)
    shown = F.pad(SHOWN, (0, 4), value=1)
    found = causal.generate(longer, attention_mask=shown, **{CACHE: cache}, **TWO_MORE)
    without = causal.generate(longer, attention_mask=shown, use_cache=False, **TWO_MORE)
    assert torch.equal(found, without)
    how = dict(max_new_tokens=1, do_sample=False)
    shown = F.pad(SHOWN, (0, 5), value=1)
    nothing_new = found[:, :-1]
    again = causal.generate(nothing_new, attention_mask=shown, **{CACHE: cache}, **how)
    assert torch.equal(again, found)


def test_a_cache_of_another_text_is_refused(chat):
    causal, written, cache = chat
    for text in (PROMPTS, written.flip(1)):
        with pytest.raises(ValueError, match='given the whole text of the cache, and what is new'):
            causal.generate(text, **{CACHE: cache}, **TWO_MORE)
    said = 'past_key_values must be the cache that this model made'
    with pytest.raises(ValueError, match=f'{said} for 1 texts'):
        causal(written[:1], past_key_values=cache)
    with pytest.raises(ValueError, match=said):
        causal(written, past_key_values=transformers.DynamicCache())


def test_a_cache_comes_back_to_the_model_with_what_is_new(chat):
    """In newer transformers it has the name `cache`."""
    causal, written, _ = chat
    shown = F.pad(SHOWN, (0, 2), value=1)
    part = causal(written[:, :3], attention_mask=SHOWN, use_cache=True)
    cache = part[CACHE]
    with pytest.raises(ValueError, match='past_key_values must be left out'):
        causal(written[:, 3:], attention_mask=shown, cache=cache, past_key_values=cache)
    rest = causal(written[:, 3:], attention_mask=shown, cache=cache)
    logits = torch.cat([part.logits, rest.logits], 1)
    same(logits, causal(written, attention_mask=shown).logits)


# the last one is empty
THREE = torch.tensor([[0, 0, 3], [5, 1, 7], [0, 0, 0]])
THREE_SHOWN = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    'how', [dict(do_sample=False), dict(do_sample=True, top_k=0), dict(num_beams=3)]
)
def test_generate_with_the_cache_is_without_it(views, how):
    _, load = views()
    causal = load('CausalLM')
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        how = how | dict(attention_mask=THREE_SHOWN, max_new_tokens=6, use_cache=use_cache)
        texts.append(causal.generate(THREE, **how))
    assert torch.equal(*texts)
    assert texts[0].shape == (3, 9)


def test_generate_writes_a_text_as_alone(views):
    _, load = views()
    causal = load('CausalLM')
    how = dict(do_sample=False, max_new_tokens=6)
    together = causal.generate(THREE, attention_mask=THREE_SHOWN, **how)
    for r, start in enumerate((2, 0, 3)):
        alone = causal.generate(THREE[r : r + 1, start:], **how)
        assert torch.equal(alone[0], together[r, start:])


def test_generate_wants_a_position_for_each_token(views):
    _, load = views()
    said = f'generate with max_length={N}, or a smaller max_new_tokens'
    with pytest.raises(ValueError, match=said):
        load('CausalLM').generate(THREE, do_sample=False, max_new_tokens=7)


@pytest.mark.parametrize('padding, how', [(0, dict()), (0, dict(num_beams=3)), (2, dict())])
def test_each_step_with_the_cache_runs_one_slot(views, monkeypatch, padding, how):
    _, load = views()
    causal = load('CausalLM')
    prompt = F.pad(torch.tensor([[5, 1, 7]]), (padding, 0))
    mask = F.pad(torch.ones(1, 3, dtype=torch.long), (padding, 0))
    widths = count_attention(causal, monkeypatch)
    causal.generate(prompt, attention_mask=mask, max_new_tokens=4, do_sample=False, **how)
    assert widths == [4, 1, 1, 1, 1, 1, 1, 1]  # the first layer and the last


@pytest.mark.parametrize(
    'sizes',
    [
        dict(attention='bidirectional'),
        dict(attention='mixed'),
        dict(),
        dict(attention='bidirectional', n_tokens=7),
    ],
)
def test_blanks_are_predicted_given_all_else(views, batch, sizes):
    model, load = views(**sizes)
    mask_id = model.config.n_real
    idx = batch[0].clamp(max=mask_id - 1)
    blank = torch.zeros(5, N, dtype=torch.bool)
    for r, positions in enumerate(([3, 5], [0], [*range(N)], [], [1, 2, 8])):
        blank[r, positions] = True
    found = load('MaskedLM')(idx.masked_fill(blank, mask_id), labels=idx)
    logp = []
    for row, is_blank, logits in zip(idx, blank, found.logits):
        known = (~is_blank).nonzero()[:, 0]
        itself = F.one_hot(row[known], mask_id).double()
        assert torch.equal(logits[known].softmax(-1), itself)
        assert logits[known].amax(-1).eq(0).all()
        if is_blank.any():
            blanks = is_blank.nonzero()[:, 0]
            order = torch.cat([known, blanks])
            own = model.predict(row[None], order[None], len(known))[0, :, :mask_id]
            same(logits[blanks], own)
            logp += own.log_softmax(-1).gather(1, row[blanks, None])[:, 0].tolist()
    same(found.loss, -torch.tensor(logp, dtype=torch.float64).mean())


@pytest.mark.parametrize(
    'sizes', [dict(attention='bidirectional'), dict(attention='mixed'), dict()]
)
def test_blanks_know_nothing_of_padding(views, batch, sizes):
    """Padding stands behind one row, before one and around one, and has the token of a blank."""
    _, load = views(**sizes)
    masked = load('MaskedLM')
    idx = batch[0][:3].masked_fill(torch.arange(N) % 3 == 1, V)
    places = [(0, 5), (2, 7), (1, 4)]
    padded, shown = place_rows(idx, places, N, V)
    found = masked(padded, attention_mask=shown).logits
    for r, (start, n) in enumerate(places):
        alone = masked(idx[r : r + 1, :n]).logits[0]
        same(found[r, start : start + n], alone)


@pytest.mark.parametrize('kind', ['bidirectional', 'mixed'])
def test_what_predicts_blanks_has_no_left_to_right_view(views, kind):
    _, load = views(attention=kind)
    said = f'attention={kind} has no left-to-right view, it predicts blanks'
    with pytest.raises(ValueError, match=said):
        load('CausalLM')


# ---- tokenizers

NAMED = {'tokenizer': 'own', 'n_tokens': 4, 'eos': None, 'vocabulary': ['C4', 'C#4', 'rest', '.*']}
NUMBERS = NAMED | {'n_tokens': 12, 'vocabulary': None}


def of_transformers(ours, folder):
    """The tokenizer that transformers loads from the files of ours."""
    for file, value in tokenizer_files(ours, N).items():
        (folder / file).write_text(json.dumps(value))
    return transformers.AutoTokenizer.from_pretrained(folder)


def some_ids(ours):
    g = torch.Generator().manual_seed(0)
    return torch.randint(ours.n_tokens, (2000,), generator=g).tolist()


def check_same_tokenizer(theirs, ours, text):
    """Both give the same ids to the text, and decode any ids alike."""
    ids = some_ids(ours)
    assert theirs.decode(ids) == ours.decode(ids)
    assert theirs(text)['input_ids'] == ours.encode(text)
    assert theirs.eos_token_id == ours.eos
    assert theirs.mask_token_id == ours.n_tokens
    assert theirs.pad_token_id == ours.n_tokens + 1
    assert len(theirs) == ours.n_tokens + 2
    assert theirs.model_max_length == N
    assert theirs.padding_side == 'left'


@pytest.mark.parametrize('name', TEXT)
def test_tokenizers_of_text_give_the_same_ids_and_decode_any(tmp_path, name):
    try:
        ours = get_tokenizer(name)
        theirs = of_transformers(ours, tmp_path)
    except ValueError as e:
        pytest.skip(str(e))
    check_same_tokenizer(theirs, ours, 'A né\n  x’s 12\t日本 🙂')


def learned():
    """A tokenizer of a library, of a few hundred tokens."""
    texts = ['A né\n  x’s 12\t日本 🙂', "it's 12345678 of the rain  and the wind"] * 3
    return train_bpe('bpe:300', 300, texts)


@pytest.mark.parametrize(
    'text',
    ['A né\n  x’s 12\t日本 🙂', " it's 1234567 winds\n\n  of rain. \r\n  ", 'a$\n b$', '   '],
)
def test_tokenizers_of_libraries_give_the_same_ids_and_decode_any(tmp_path, text):
    pytest.importorskip('tokenizers')
    ours = learned()
    check_same_tokenizer(of_transformers(ours, tmp_path), ours, text)


def test_names_of_blank_and_padding_are_no_tokens_of_the_library(tmp_path):
    pytest.importorskip('tokenizers')
    ours = learned()
    ours.backend.add_special_tokens(['<|mask|>', '<|pad|>'])
    ours = Library.of_file('mine', ours.backend.to_str())
    theirs = of_transformers(ours, tmp_path)
    text = 'the rain and the wind<|mask|>'
    assert theirs.convert_tokens_to_ids('<|mask|>') == ours.n_tokens - 2
    check_same_tokenizer(theirs, ours, text[:-8])


def test_what_transformers_cannot_have_with_the_same_ids_is_left_out():
    pytest.importorskip('tokenizers')
    parts = json.loads(learned().file)
    gone = parts['model']['merges'].pop()
    del parts['model']['vocab'][''.join(gone)]
    parts['added_tokens'] = []
    parts['model']['vocab'] |= {'late': 310}
    assert tokenizer_files(Library.of_file('mine', json.dumps(parts)), N) == {}
    tiktoken = pytest.importorskip('tiktoken')
    ranks = {bytes([byte]): byte for byte in range(256)}
    bpe = tiktoken.Encoding('mine', pat_str='.', mergeable_ranks=ranks, special_tokens={})
    assert tokenizer_files(Tiktoken('tiktoken:mine', bpe), N) == {}


SETS = [{'tokenizer': name} for name in MAKERS]


@pytest.mark.parametrize('kind', [*SETS, NAMED, NAMED | {'eos': 2}, NUMBERS, NUMBERS | {'eos': 11}])
def test_tokenizers_of_symbols_give_the_same_ids_and_decode_any(tmp_path, kind):
    ours = tokenizer_of_set(kind)
    theirs = of_transformers(ours, tmp_path)
    check_same_tokenizer(theirs, ours, ours.decode(some_ids(ours)))
    with pytest.raises(Exception, match='UNK'):
        theirs('?')


@pytest.mark.parametrize(
    'kind', [NAMED | {'eos': 0, 'vocabulary': ['C4', 'C4.', 'rest', 'x']}, NUMBERS | {'eos': 1}]
)
def test_an_end_that_stands_in_other_names_cuts_none_of_them(tmp_path, kind):
    ours = tokenizer_of_set(kind)
    theirs = of_transformers(ours, tmp_path)
    text = ours.decode(range(ours.n_tokens))
    assert theirs(text)['input_ids'] == ours.encode(text) == [*range(ours.n_tokens)]
    assert theirs.eos_token is None


def test_names_of_blank_and_padding_are_no_tokens_of_the_set(tmp_path):
    names = ['<|pad|>', 'x<|mask|>', 'x', 'end', 'y']
    ours = tokenizer_of_set(NAMED | {'n_tokens': 5, 'eos': 3, 'vocabulary': names})
    theirs = of_transformers(ours, tmp_path)
    text = ours.decode(range(5))
    assert theirs(text)['input_ids'] == ours.encode(text)
    assert theirs.mask_token_id == 5
    assert theirs.pad_token_id == 6


def test_a_pipeline_writes_text(tmp_path, caplog):
    import anyorder.extras.hub.__main__ as export_hf
    from configurator import configure

    model = make_model(vocab_size=320, n_tokens=257).float()
    entries = {'tokenizer': 'bytes', 'config': {'dataset': 'mine'}}
    save_checkpoint(tmp_path / 'ckpt.pt', model, EMA(model, 0.9), **entries)
    options = [f'--ckpt={tmp_path}/ckpt.pt', f'--out={tmp_path}/hf']
    export_hf.main(configure(vars(export_hf), options))
    folder = str(tmp_path / 'hf')
    write = transformers.pipeline('text-generation', model=folder, trust_remote_code=True)

    def ids_of(prompt, **how):
        return write(prompt, return_tensors=True, **how)[0]['generated_token_ids']

    ids = ids_of('ab')  # a pipeline asks for 256 tokens by default
    assert ids[:2] == [97, 98]
    assert len(ids) == N or ids[-1] == 256
    assert write('ab')[0]['generated_text'][:2] == 'ab'
    ids = ids_of('ab' * N, truncation=True)  # to what is read
    assert ids[:-1] == write.tokenizer('ab' * N)['input_ids'][: N - 1]
    caplog.clear()
    text = write.model.generate(torch.tensor([[97, 98]]), max_new_tokens=3, eos_token_id=None)
    assert text.size(1) == 5
    assert not caplog.messages


# ---- what a folder of a model of text does by default


@pytest.fixture
def written(tmp_path):
    """written(model) exports it with a tokenizer of bytes, and returns the folder."""

    def export(model):
        folder = tmp_path / 'text'
        folder.mkdir()
        bytes_ = get_tokenizer('bytes')
        write_exported(folder, model.float(), {'tokenizer': 'bytes'}, bytes_, 'raw')
        return str(folder)

    return export


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def load_tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def by_options(folder, n):
    return load(folder).generate(torch.full((n, 1), 65), max_new_tokens=1)[:, 1]


def by_a_config(folder, n):
    config = transformers.GenerationConfig(max_new_tokens=1)
    return load(folder).generate(torch.full((n, 1), 65), generation_config=config)[:, 1]


def by_a_pipeline(folder, n):
    if transformers.__version__.startswith('5.2.'):
        pytest.skip('whose pipelines have a temperature of 0.7, whatever the folder says')
    parts = dict(model=load(folder), tokenizer=load_tokenizer(folder))
    write = transformers.pipeline('text-generation', **parts)
    texts = write(['A'] * n, max_new_tokens=1, return_tensors=True, batch_size=n)
    return torch.tensor([text[0]['generated_token_ids'][1] for text in texts])


@pytest.mark.slow
@pytest.mark.parametrize('draw', [by_options, by_a_config, by_a_pipeline])
def test_it_writes_by_its_own_law(written, draw):
    """64 common bytes share 0.6, and all other tokens 0.4, whatever was read."""
    model = make_model(vocab_size=320, n_tokens=257, n_layer=1)
    p = torch.cat([torch.full((64,), 0.6 / 64), torch.full((193,), 0.4 / 193)])
    for weights in model.parameters():
        weights.zero_()
    model.lm_head.bias[:257] = p.log()
    folder = written(model)
    torch.manual_seed(1)
    n = 2000
    drawn = draw(folder, n)
    error = (0.4 * 0.6 / n) ** 0.5
    assert abs((drawn >= 64).double().mean() - 0.4) < 5 * error
    assert len(drawn.unique()) > 240


@pytest.mark.slow
@pytest.mark.parametrize('vocab_size', [257, 258, 320])
def test_texts_that_end_are_padded_and_change_no_other(written, vocab_size):
    """Padding has an id behind the vocabulary, with a row for it or not, and is never drawn."""
    folder = written(make_model(vocab_size=vocab_size, n_tokens=257, block_size=24))
    hub = load(folder)
    tokenizer = load_tokenizer(folder)
    prompts = ['ab', 'abcdef', 'q']
    how = dict(do_sample=False, max_new_tokens=9)
    alone = []
    for prompt in prompts:
        text = hub.generate(**tokenizer(prompt, return_tensors='pt'), **how)
        alone.append(text[0, len(prompt) :].tolist())

    end = alone[0][2]  # ends the first text, and may end others
    texts = tokenizer(prompts, padding=True, return_tensors='pt')
    found = hub.generate(**texts, eos_token_id=end, **how)
    for row, kept in zip(found[:, 6:].tolist(), alone):
        if end in kept:
            kept = kept[: kept.index(end) + 1]
        padding = [258] * (len(row) - len(kept))
        assert row == kept + padding
    without = hub.generate(**texts, eos_token_id=end, use_cache=False, **how)
    assert torch.equal(without, found)
    guessed = hub.generate(texts['input_ids'], eos_token_id=end, **how)
    assert torch.equal(guessed, found)  # where padding is told from the ids


@pytest.mark.slow
def test_nothing_is_warned_of_when_it_is_opened_and_saved(written, tmp_path, caplog):
    hub = load(written(make_model(vocab_size=320, n_tokens=257)))
    hub.save_pretrained(tmp_path / 'again')
    assert not caplog.messages
    assert load(tmp_path / 'again').config.pad_token_id == 258


@pytest.mark.slow
def test_the_standard_collator_learns_ends_and_no_padding(written):
    tokenizer = load_tokenizer(written(make_model(vocab_size=320, n_tokens=257)))
    texts = ['one<|endoftext|>', 'three four<|endoftext|>', 'five<|endoftext|>']
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    batch = collate([tokenizer(text) for text in texts])
    assert (batch['labels'] == 256).sum() == 3
    assert torch.equal(batch['labels'] == -100, batch['attention_mask'] == 0)


@pytest.mark.slow
def test_a_pipeline_fills_blanks(written):
    model = make_model(vocab_size=320, n_tokens=257, attention='bidirectional').float()
    fill = transformers.pipeline('fill-mask', model=written(model), trust_remote_code=True)
    best = fill('tw<|mask|> and', top_k=3)
    idx = torch.tensor([[*b'tw', 0, *b' and']])
    order = torch.tensor([[0, 1, 3, 4, 5, 6, 2]])
    p, tokens = model.predict(idx, order, 6)[0, 0].softmax(-1).topk(3)
    assert [one['token'] for one in best] == tokens.tolist()
    assert [one['score'] for one in best] == pytest.approx(p.tolist(), abs=1e-6)


@pytest.mark.slow
def test_lm_eval_reads_it_as_a_model_of_transformers(written):
    pytest.importorskip('lm_eval')
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = make_model(vocab_size=320, n_tokens=257, block_size=24).float()
    lm = HFLM(pretrained=written(model), trust_remote_code=True, device='cpu', batch_size=3)

    def asked(*args):
        return Instance('loglikelihood', {}, args, 0)

    def logp(text, start):
        tokens = torch.tensor([list(text)])
        return -float(model(tokens, torch.arange(len(text))[None])[0, start:].sum())

    pairs = [('two and', ' two', 7), ('a', ' b c d', 1), ('one and two:', ' x', 12)]
    found = lm.loglikelihood([asked(context, text) for context, text, _ in pairs])
    right = [logp((context + text).encode(), start) for context, text, start in pairs]
    assert [nats for nats, _ in found] == pytest.approx(right, abs=1e-4)
    # behind an end of text, where lm_eval has [None]
    (whole,) = lm.loglikelihood_rolling([asked('two and two')])
    assert whole == pytest.approx(logp([256, *b'two and two'], 1), abs=1e-4)


# ---- device maps of accelerate

KINDS = [
    dict(),
    dict(target_position='input', gpt2_blocks=True),
    dict(target_position='two_stream'),
    dict(attention='mixed'),
]
IDX = torch.tensor([[7, 5, 0, 3], [1, 2, 0, 4]])
PLACES = torch.arange(4).expand(2, -1)


def next_logits(view):
    return view(IDX).logits


def generated(view):
    return view.generate(IDX, do_sample=False, max_length=7)


def blank_logits(view):
    return view(IDX.masked_fill(IDX == 0, V)).logits


def predicted(view):
    return view.predict(IDX, PLACES, 2)


def losses(view):
    n_known = torch.tensor([2, 2]) if view.network.slots.masked_loss else None
    return view(IDX, PLACES, n_known)


CALLS = {'CausalLM': [next_logits, generated], 'MaskedLM': [blank_logits], '': [predicted, losses]}


def of_kind(sizes):
    """The names of the views that a network of this kind has."""
    if sizes.get('attention') == 'mixed':
        return ['MaskedLM', '']
    return list(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize(
    'sizes, how',
    [
        *((sizes, 'auto') for sizes in KINDS),
        (KINDS[0], 'balanced'),
        (KINDS[1], 'sequential'),
        (KINDS[1], 'cpu'),
    ],
)
def test_a_device_map_keeps_the_network_whole_and_right(views, sizes, how):
    pytest.importorskip('accelerate')
    _, load = views(**sizes)
    for name in of_kind(sizes):
        mapped = load(name, device_map=how)
        usual = load(name)
        for call in CALLS[name]:
            assert torch.equal(call(mapped), call(usual))


@pytest.mark.slow
@pytest.mark.parametrize('sizes', KINDS)
def test_a_network_is_not_divided_between_devices(views, sizes):
    accelerate = pytest.importorskip('accelerate')
    _, load = views(**sizes)
    for name in of_kind(sizes):
        view = load(name)
        whole = dict(no_split_module_classes=view._no_split_modules)
        size = sum(p.numel() * p.element_size() for p in view.parameters())
        for room in (
            {0: 10 * size, 1: 10 * size},
            {0: size // 2, 1: 10 * size},
            {0: size // 2, 'cpu': 10 * size},
        ):
            places = accelerate.infer_auto_device_map(view, max_memory=room, **whole)
            assert len({*places.values()}) == 1
            assert not [part for part in places if part.startswith('network.')]


def offloads(folder):
    """{name: function that has accelerate keep the weights of a view elsewhere}"""
    import accelerate

    own = dict(execution_device='cpu')

    def on_disk(view):
        accelerate.disk_offload(view, folder, **own)
        return view

    def in_part(view):
        places = {'': 'cpu', 'network.transformer.h.1': 'disk'}
        return accelerate.dispatch_model(view, places, main_device='cpu', offload_dir=folder)

    whole = ['LeftToRight', 'HubNetwork']
    return {
        'cpu': lambda view: accelerate.cpu_offload(view, **own),
        'disk': on_disk,
        'in part': in_part,
        'preloaded': lambda view: accelerate.cpu_offload(view, preload_module_classes=whole, **own),
        'map': lambda view: type(view).from_pretrained(
            view.name_or_path, device_map={'': 'disk'}, offload_folder=folder, dtype=torch.float64
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    'sizes, how',
    [
        *((sizes, 'disk') for sizes in KINDS),
        *((KINDS[0], how) for how in ('cpu', 'in part', 'preloaded', 'map')),
        (KINDS[1], 'preloaded'),
        (KINDS[1], 'map'),
    ],
)
def test_weights_that_are_offloaded_are_right_or_refused(views, tmp_path, sizes, how):
    pytest.importorskip('accelerate')
    _, load = views(**sizes)
    for name in of_kind(sizes):
        usual = load(name)
        view = offloads(str(tmp_path / f'kept-{name}'))[how](load(name))
        for call in CALLS[name]:
            try:
                assert torch.equal(call(view), call(usual))
            except ValueError as e:
                assert 'offload' in str(e)
                assert '\n' not in str(e)


@pytest.mark.slow
def test_a_model_that_moves_back_and_forth_is_right(views):
    accelerate = pytest.importorskip('accelerate')
    _, load = views()
    expected = load('CausalLM')(IDX).logits
    view, hook = accelerate.cpu_offload_with_hook(load('CausalLM'), execution_device='cpu')
    assert torch.equal(view(IDX).logits, expected)
    hook.offload()
    assert torch.equal(view(IDX).logits, expected)
