"""What transformers loads from a folder of export_hf.py: the network to the last bit, and its views."""

import json
import runpy

import pytest
import torch
from conftest import make_model

from anyorder.checkpoint import digest, model_from_checkpoint, save_checkpoint
from anyorder.others.exported import write_exported
from anyorder.others.tokenizer_files import tokenizer_files
from anyorder.tokens.tokenizers import TEXT, TOKENIZERS, get_tokenizer, tokenizer_of_set
from model import EMA

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.usefixtures('hub_modules')
N, V = 9, 11  # as make_model has them


@pytest.fixture
def views(tmp_path):
    """views(**sizes) exports a small model: (the model in float64, the view of an auto class, e.g. of 'CausalLM')."""

    def export(**sizes):
        model = make_model(**sizes).float()
        (tmp_path / 'hf').mkdir()
        write_exported(tmp_path / 'hf', model, {}, None, 'ema')

        def load(name='', dtype=torch.float64, **how):
            auto = getattr(transformers, f'AutoModel{name and "For"}{name}')
            return auto.from_pretrained(tmp_path / 'hf', trust_remote_code=True, **how).to(dtype)

        return model.double(), load

    return export


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
    model, network, (idx, order), known = (
        model.float(),
        load(dtype=torch.float32),
        batch,
        torch.tensor([0, 1, 3, 5, 8]),
    )
    idx = idx.clamp(max=model.config.n_real - 1)
    n_known = known if model.slots.masked_loss else None
    assert torch.equal(
        network(input_ids=idx, order=order, n_known=n_known), model(idx, order, n_known)
    )
    assert torch.equal(network.predict(idx, order, known), model.predict(idx, order, known))
    assert not network.training and {p.dtype for p in network.parameters()} == {torch.float32}
    assert digest(network.network) == digest(model_from_checkpoint(tmp_path / 'hf'))


def test_a_new_network_begins_as_ours(views):
    config = views(gate_init=1.0)[1]().config
    network = transformers.AutoModel.from_config(config, trust_remote_code=True).network
    assert network.transformer.h[1].adaLN[1].bias.view(6, -1).mean(1).tolist() == [0, 0, 1, 0, 0, 1]


def test_what_transformers_saves_comes_back(views, tmp_path):
    for sizes in (dict(), dict(target_position='input', gpt2_blocks=True)):
        model, load = views(**sizes)
        load('CausalLM', torch.float32).save_pretrained(tmp_path / 'again')
        assert digest(model_from_checkpoint(tmp_path / 'again')) == digest(model.float())
        (tmp_path / 'hf').rename(tmp_path / f'hf-{len(sizes)}')


@pytest.mark.parametrize('sizes', [dict(), dict(target_position='two_stream')])
def test_left_to_right_each_column_predicts_the_next_token(views, batch, sizes):
    model, load = views(**sizes)
    causal, idx = load('CausalLM'), batch[0]
    nll = model(idx, torch.arange(N).expand(5, -1))
    found = causal(idx, labels=idx)
    of_next = found.logits[:, :-1].log_softmax(-1).gather(-1, idx[:, 1:, None])[..., 0]
    torch.testing.assert_close(-of_next, nll[:, 1:], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.loss, nll[:, 1:].mean(), rtol=0, atol=1e-12)
    assert torch.equal(
        found.logits[:, -1], model.lm_head.bias.expand(5, -1)
    )  # no position is left to predict
    labels = idx.masked_fill(torch.arange(N) != 4, -100)
    torch.testing.assert_close(
        causal(idx, labels=labels).loss, nll[:, 4].mean(), rtol=0, atol=1e-12
    )


def test_padding_at_either_end_changes_nothing(views, batch):
    """Each row has as many tokens as it has alone; a padded batch may be wider than the model is long."""
    model, load = views()
    causal, idx = load('CausalLM'), batch[0]
    alone = [causal(row[None, :n]).logits[0] for row, n in zip(idx, (8, 1, 5, 4, 8))]
    for left in (0, 3):
        padded, mask = torch.full((5, 13), 10), torch.zeros(5, 13, dtype=torch.long)
        for r, logits in enumerate(alone):
            padded[r, left : left + len(logits)], mask[r, left : left + len(logits)] = (
                idx[r, : len(logits)],
                1,
            )
        found = causal(padded, attention_mask=mask).logits
        for r, logits in enumerate(alone):
            torch.testing.assert_close(
                found[r, left : left + len(logits)], logits, rtol=0, atol=1e-12
            )
    mask[1] = 0  # before a token, and in an empty row, a column is given [None]
    first = model.predict(idx, torch.arange(1).expand(5, -1), 0)
    torch.testing.assert_close(
        causal(padded, attention_mask=mask).logits[1], first[1].expand(13, -1)
    )
    mask[0, 5] = 0
    for wrong in (mask, mask[:, 1:]):  # within a row, and narrower than the text
        with pytest.raises(
            ValueError, match='attention_mask must have a column for each token, .* hide the ends'
        ):
            causal(padded, attention_mask=wrong)


@pytest.mark.parametrize(
    'sizes', [dict(n_tokens=7), dict(n_tokens=7, target_position='input', gpt2_blocks=True)]
)
def test_losses_are_over_the_real_tokens(views, batch, sizes):
    """Smoothing, KL, and the head and the hidden states that TRL multiplies by itself."""
    model, load = views(**sizes)
    causal, masked, idx = load('CausalLM'), load('MaskedLM'), batch[0].clamp(max=6)
    order = torch.arange(N).expand(5, -1)
    logp = model.predict(idx, order, N - 1, N, first=0)[..., :7].log_softmax(-1)[:, 1:]
    found, labels = causal(idx, labels=idx), idx[:, 1:, None]
    smooth = torch.nn.functional.cross_entropy(
        found.logits[:, :-1].transpose(1, 2), idx[:, 1:], label_smoothing=0.1
    )
    expected = -0.9 * logp.gather(-1, labels).mean() - 0.1 * logp.mean()
    torch.testing.assert_close(smooth, expected, rtol=0, atol=1e-12)
    blanks = idx.masked_fill(order % 2 == 0, 7)
    for logits in (found.logits, masked(blanks).logits):
        q = logits.log_softmax(-1)
        assert torch.nn.functional.kl_div(q, q, reduction='sum', log_target=True) == 0
        assert logits.size(-1) == causal.config.vocab_size == 7
    head, hidden = (
        causal.get_output_embeddings(),
        causal.base_model(input_ids=idx, use_cache=False).last_hidden_state,
    )
    theirs = (hidden @ head.weight.T + head.bias).log_softmax(-1)[:, :-1]
    torch.testing.assert_close(theirs[..., :7], logp, rtol=0, atol=1e-12)
    assert theirs[..., 7:].exp().eq(0).all() and head.weight.shape == model.lm_head.weight.shape
    found = causal(idx, labels=idx, num_items_in_batch=torch.tensor(80)).loss
    torch.testing.assert_close(found, -logp.gather(-1, labels).sum() / 80, rtol=0, atol=1e-12)


def test_arguments_of_other_models_are_done_or_refused(views, batch):
    load, idx = views()[1], batch[0]
    causal, masked, shown = load('CausalLM'), load('MaskedLM'), torch.ones(5, N).tril(3)
    place, logits = torch.arange(N).expand(5, -1), causal(idx, attention_mask=shown).logits
    silent = dict(inputs_embeds=None, output_attentions=False, return_dict=None)
    assert torch.equal(
        causal(idx, attention_mask=shown, position_ids=place, **silent).logits, logits
    )
    found = causal(idx, shown, return_dict=False, logits_to_keep=torch.tensor([1, 4]))[0]
    torch.testing.assert_close(found, logits[:, [1, 4]], rtol=0, atol=1e-12)
    assert torch.equal(masked(idx, **silent).logits, masked(idx).logits)
    for view, name, given in (
        (causal, 'inputs_embeds', torch.zeros(5, N, 16)),
        (masked, 'output_attentions', True),
        (causal, 'output_hidden_states', True),
        (masked, 'cu_seq_lens_q', torch.arange(3)),
    ):
        with pytest.raises(ValueError, match=f'{name} must be left out: an AO-GPT reads input_ids'):
            view(input_ids=idx, **{name: given})
    with pytest.raises(
        ValueError, match='position_ids must count the tokens of a row from 0: .* no packing'
    ):
        causal(idx, attention_mask=shown, position_ids=place % 3)
    assert load('CausalLM', attn_implementation='sdpa').config._attn_implementation == 'sdpa'
    with pytest.raises(ValueError, match='does not support Flash Attention 2'):
        load('CausalLM', attn_implementation='flash_attention_2')
    with pytest.raises(ValueError, match=f'the vocabulary must keep its {V} tokens'):
        causal.resize_token_embeddings(20)
    assert causal.get_input_embeddings().weight.shape == causal.lm_head.weight.shape


@pytest.mark.parametrize('name', ['CausalLM', 'MaskedLM'])
def test_checkpointing_computes_each_block_twice(views, batch, monkeypatch, name):
    view, idx, calls, gradients = (
        views()[1](name).train(),
        batch[0].masked_fill(batch[1] % 2 == 0, V),
        [],
        [],
    )
    idx = idx if name == 'MaskedLM' else batch[0]
    attend = type(view.network.transformer.h[0].attn).attend
    monkeypatch.setattr(
        type(view.network.transformer.h[0].attn),
        'attend',
        lambda self, *args: calls.append(1) or attend(self, *args),
    )
    for change in ('disable', 'enable', 'disable'):
        calls.clear()
        getattr(view, f'gradient_checkpointing_{change}')()
        view(idx, labels=batch[0]).loss.backward()
        gradients.append([p.grad for p in view.parameters() if p.grad is not None])
        view.zero_grad()
        assert len(calls) == (4 if change == 'enable' else 2)
    assert all(torch.equal(a, b) for a, b in zip(*gradients[:2]))


def test_a_cache_comes_back_with_more_text(views):
    """As chat loops do: to generate() with the whole text, and to the model with what is new."""
    causal, how = views()[1]('CausalLM'), dict(do_sample=False, max_new_tokens=2)
    prompts, mask = torch.tensor([[0, 0, 3], [5, 1, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    out = causal.generate(prompts, attention_mask=mask, return_dict_in_generate=True, **how)
    longer = torch.cat([out.sequences, torch.tensor([[4, 2], [6, 6]])], 1)
    shown = torch.nn.functional.pad(mask, (0, 4), value=1)
    for text in (prompts, longer.flip(1)):
        with pytest.raises(ValueError, match='given the whole text of the cache, and what is new'):
            causal.generate(text, past_key_values=out.past_key_values, **how)
    with pytest.raises(
        ValueError, match='past_key_values must be the cache that this model made for 1 texts'
    ):
        causal(longer[:1], past_key_values=out.past_key_values)
    found = causal.generate(
        longer, attention_mask=shown, past_key_values=out.past_key_values, **how
    )
    assert torch.equal(found, causal.generate(longer, attention_mask=shown, use_cache=False, **how))
    again = causal.generate(
        found[:, :-1],
        attention_mask=torch.nn.functional.pad(mask, (0, 5), value=1),
        past_key_values=out.past_key_values,
        max_new_tokens=1,
        do_sample=False,
    )  # nothing is new
    assert torch.equal(again, found)
    part = causal(longer[:, :4], attention_mask=shown[:, :4], use_cache=True)
    with pytest.raises(ValueError, match='past_key_values must be left out'):
        causal(
            longer[:, 4:],
            attention_mask=shown,
            cache=part.past_key_values,
            past_key_values=part.past_key_values,
        )
    rest = causal(
        longer[:, 4:], attention_mask=shown, cache=part.past_key_values
    )  # its name in newer transformers
    logits = torch.cat([part.logits, rest.logits], 1)
    torch.testing.assert_close(
        logits, causal(longer, attention_mask=shown).logits, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    'how', [dict(do_sample=False), dict(do_sample=True, top_k=0), dict(num_beams=3)]
)
def test_generate_with_the_cache_is_without_it_and_alone(views, how):
    """The last prompt is empty."""
    causal, texts = views()[1]('CausalLM'), []
    prompts, mask = (
        torch.tensor([[0, 0, 3], [5, 1, 7], [0, 0, 0]]),
        torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 0]]),
    )
    for use_cache in (True, False):
        torch.manual_seed(0)
        texts.append(
            causal.generate(
                prompts, attention_mask=mask, use_cache=use_cache, max_new_tokens=6, **how
            )
        )
    assert torch.equal(*texts) and texts[0].shape == (3, 9)
    if how == dict(do_sample=False):
        for r, start in enumerate((2, 0, 3)):
            alone = causal.generate(prompts[r : r + 1, start:], max_new_tokens=6, **how)
            assert torch.equal(alone[0], texts[0][r, start:])
        with pytest.raises(
            ValueError, match=f'generate with max_length={N}, or a smaller max_new_tokens'
        ):
            causal.generate(prompts, max_new_tokens=7, **how)
        with pytest.raises(
            ValueError, match='past_key_values must be the cache that this model made'
        ):
            causal(prompts, past_key_values=transformers.DynamicCache())


@pytest.mark.parametrize('how', [dict(), dict(num_beams=3), dict(padding=2)])
def test_each_step_with_the_cache_runs_one_slot(views, monkeypatch, how):
    causal, widths, padding = views()[1]('CausalLM'), [], how.pop('padding', 0)
    network, attend = causal.network, type(causal.network.transformer.h[0].attn).attend
    monkeypatch.setattr(
        type(network.transformer.h[0].attn),
        'attend',
        lambda self, q, *rest: widths.append(q.size(1)) or attend(self, q, *rest),
    )
    prompt, mask = (
        torch.tensor([[0] * padding + [5, 1, 7]]),
        torch.tensor([[0] * padding + [1, 1, 1]]),
    )
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
    masked, mask_id = load('MaskedLM'), model.config.n_real
    idx = batch[0].clamp(max=mask_id - 1)
    blank = torch.zeros(5, N, dtype=torch.bool)
    for r, positions in enumerate(([3, 5], [0], range(N), [], [1, 2, 8])):
        blank[r, list(positions)] = True
    found = masked(idx.masked_fill(blank, mask_id), labels=idx)
    nats = []
    for r in range(5):
        known, blanks = (~blank[r]).nonzero()[:, 0], blank[r].nonzero()[:, 0]
        logp = found.logits[r].log_softmax(-1)
        assert torch.equal(
            logp[known].exp(), torch.nn.functional.one_hot(idx[r, known], mask_id).double()
        )
        assert found.logits[r, known].amax(-1).eq(0).all()
        if len(blanks):
            own = model.predict(idx[r : r + 1], torch.cat([known, blanks])[None], len(known))[
                0, :, :mask_id
            ]
            torch.testing.assert_close(found.logits[r, blanks], own, rtol=0, atol=1e-12)
            nats += own.log_softmax(-1).gather(1, idx[r, blanks, None])[:, 0].tolist()
    torch.testing.assert_close(
        found.loss, -torch.tensor(nats, dtype=torch.float64).mean(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    'sizes', [dict(attention='bidirectional'), dict(attention='mixed'), dict()]
)
def test_blanks_know_nothing_of_padding(views, batch, sizes):
    """Padding stands behind one row, before one and around one, and has the token of a blank."""
    load = views(**sizes)[1]
    masked, idx = load('MaskedLM'), batch[0][:3].masked_fill(torch.arange(N) % 3 == 1, V)
    padded, shown = torch.full((3, N), V), torch.zeros(3, N, dtype=torch.long)
    for r, (start, n) in enumerate(((0, 5), (2, 7), (1, 4))):
        padded[r, start : start + n], shown[r, start : start + n] = idx[r, :n], 1
    found = masked(padded, attention_mask=shown).logits
    for r, (start, n) in enumerate(((0, 5), (2, 7), (1, 4))):
        alone = masked(idx[r : r + 1, :n]).logits[0]
        torch.testing.assert_close(found[r, start : start + n], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize('kind', ['bidirectional', 'mixed'])
def test_what_predicts_blanks_has_no_left_to_right_view(views, kind):
    load = views(attention=kind)[1]
    with pytest.raises(
        ValueError, match=f'attention={kind} has no left-to-right view, it predicts blanks'
    ):
        load('CausalLM')


NAMED = {'tokenizer': 'own', 'n_tokens': 4, 'eos': None, 'vocabulary': ['C4', 'C#4', 'rest', '.*']}


NUMBERS = NAMED | {'n_tokens': 12, 'vocabulary': None}


@pytest.mark.parametrize(
    'name', [*TOKENIZERS, NAMED, NAMED | {'eos': 2}, NUMBERS, NUMBERS | {'eos': 11}]
)
def test_tokenizers_give_the_same_ids_and_decode_any(tmp_path, name):
    try:
        ours = get_tokenizer(name) if isinstance(name, str) else tokenizer_of_set(name)
        files = tokenizer_files(ours, N)
    except ValueError as e:
        pytest.skip(str(e))
    for file, value in files.items():
        (tmp_path / file).write_text(json.dumps(value))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(ours.n_tokens, (2000,), generator=g).tolist()
    assert theirs.decode(ids) == ours.decode(ids) and theirs.mask_token_id == ours.n_tokens
    assert theirs.model_max_length == N and theirs.padding_side == 'left'
    assert (
        theirs.eos_token_id == ours.eos
        and len(theirs) == theirs.pad_token_id + 1 == ours.n_tokens + 2
    )
    text = 'A né\n  x’s 12\t日本 🙂' if ours.name in TEXT else ours.decode(ids)
    assert theirs(text)['input_ids'] == ours.encode(text)
    if ours.name not in TEXT:
        with pytest.raises(Exception, match='UNK'):
            theirs('?')


@pytest.mark.parametrize(
    'name', [NAMED | {'eos': 0, 'vocabulary': ['C4', 'C4.', 'rest', 'x']}, NUMBERS | {'eos': 1}]
)
def test_an_end_that_stands_in_other_names_cuts_none_of_them(tmp_path, name):
    ours = tokenizer_of_set(name)
    for file, value in tokenizer_files(ours, N).items():
        (tmp_path / file).write_text(json.dumps(value))
    text = ours.decode(range(ours.n_tokens))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (
        theirs(text)['input_ids'] == ours.encode(text) == [*range(ours.n_tokens)]
        and theirs.eos_token is None
    )


def test_names_of_blank_and_padding_are_no_tokens_of_the_set(tmp_path):
    ours = tokenizer_of_set(
        NAMED | {'n_tokens': 5, 'eos': 3, 'vocabulary': ['<|pad|>', 'x<|mask|>', 'x', 'end', 'y']}
    )
    for file, value in tokenizer_files(ours, N).items():
        (tmp_path / file).write_text(json.dumps(value))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = ours.decode(range(5))
    assert theirs(text)['input_ids'] == ours.encode(text) and (
        theirs.mask_token_id,
        theirs.pad_token_id,
    ) == (5, 6)


@pytest.mark.parametrize(
    'name, sizes',
    [
        ('bytes', dict(vocab_size=320, n_tokens=257)),
        ('sudoku4', dict(n_tokens=4, attention='bidirectional')),
    ],
)
def test_the_program_of_the_model_card_runs(tmp_path, name, sizes):
    model = make_model(**sizes).float()
    write_exported(tmp_path, model, {}, get_tokenizer(name), 'ema')
    program = (tmp_path / 'README.md').read_text().partition('```python\n')[2].partition('```')[0]
    (tmp_path / 'program.py').write_text(program.replace('DIR', str(tmp_path)))
    found = runpy.run_path(str(tmp_path / 'program.py'))
    assert found['nll'].shape == (1, N) and (
        sizes.get('attention') or found['text'].size(1) == N or found['text'][0, -1] == 256
    )


def test_a_pipeline_writes_text(tmp_path, caplog):
    import export_hf
    from configurator import configure

    model = make_model(vocab_size=320, n_tokens=257).float()
    save_checkpoint(
        tmp_path / 'ckpt.pt', model, EMA(model, 0.9), tokenizer='bytes', config={'dataset': 'mine'}
    )
    export_hf.main(
        configure(vars(export_hf), [f'--ckpt={tmp_path}/ckpt.pt', f'--out={tmp_path}/hf'])
    )
    write = transformers.pipeline(
        'text-generation', model=str(tmp_path / 'hf'), trust_remote_code=True
    )
    ids = write('ab', return_tensors=True)[0][
        'generated_token_ids'
    ]  # which asks for 256 by default
    assert (
        ids[:2] == [97, 98]
        and (len(ids) == N or ids[-1] == 256)
        and write('ab')[0]['generated_text'][:2] == 'ab'
    )
    ids = write('ab' * N, truncation=True, return_tensors=True)[0][
        'generated_token_ids'
    ]  # to what is read
    assert ids[:-1] == write.tokenizer('ab' * N)['input_ids'][: N - 1]
    caplog.clear()
    assert (
        len(write.model.generate(torch.tensor([[97, 98]]), max_new_tokens=3, eos_token_id=None)[0])
        == 5
    )
    assert not caplog.messages


# ---- what a folder of a model of text does by default


@pytest.fixture
def written(tmp_path):
    """written(model, name='bytes') exports it, with a tokenizer; the folder."""

    def export(model, name='bytes'):
        (tmp_path / 'text').mkdir()
        write_exported(
            tmp_path / 'text', model.float(), {'tokenizer': name}, get_tokenizer(name), 'raw'
        )
        return str(tmp_path / 'text')

    return export


def load(folder, name='CausalLM'):
    return getattr(transformers, f'AutoModelFor{name}').from_pretrained(
        folder, trust_remote_code=True
    )


@pytest.mark.slow
@pytest.mark.parametrize('how', ['generate', 'config', 'pipeline'])
def test_it_writes_by_its_own_law(written, how):
    """64 common bytes share 0.6, and all other tokens 0.4, whatever was read."""
    model = make_model(vocab_size=320, n_tokens=257, n_layer=1)
    p = torch.cat([torch.full((64,), 0.6 / 64), torch.full((193,), 0.4 / 193)])
    for weights in model.parameters():
        weights.zero_()
    model.lm_head.bias[:257] = p.log()
    folder, n = written(model), 2000
    hub, tokenizer = (
        load(folder),
        transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True),
    )
    torch.manual_seed(1)
    if how == 'pipeline':
        if transformers.__version__.startswith('5.2.'):
            pytest.skip('whose pipelines have a temperature of 0.7, whatever the folder says')
        write = transformers.pipeline('text-generation', model=hub, tokenizer=tokenizer)
        texts = write(['A'] * n, max_new_tokens=1, return_tensors=True, batch_size=n)
        drawn = torch.tensor([text[0]['generated_token_ids'][1] for text in texts])
    else:
        own = (
            dict(generation_config=transformers.GenerationConfig(max_new_tokens=1))
            if how == 'config'
            else {}
        )
        drawn = hub.generate(torch.full((n, 1), 65), **own or dict(max_new_tokens=1))[:, 1]
    assert (
        abs((drawn >= 64).double().mean() - 0.4) < 5 * (0.4 * 0.6 / n) ** 0.5
        and len(drawn.unique()) > 240
    )


@pytest.mark.slow
@pytest.mark.parametrize('vocab_size', [257, 258, 320])
def test_texts_that_end_are_padded_and_change_no_other(written, vocab_size):
    """Padding has an id behind the vocabulary, whether there is a row for it or not, and is never drawn."""
    hub = load(written(make_model(vocab_size=vocab_size, n_tokens=257, block_size=24)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub.name_or_path, trust_remote_code=True)
    prompts = ['ab', 'abcdef', 'q']
    texts = tokenizer(prompts, padding=True, return_tensors='pt')
    firsts = [
        hub.generate(**tokenizer(text, return_tensors='pt'), do_sample=False, max_new_tokens=9)[
            0, len(text) :
        ]
        for text in prompts
    ]
    end = int(firsts[0][2])  # which therefore ends the first text, and may end others
    found = {
        use_cache: hub.generate(
            **texts, do_sample=False, max_new_tokens=9, eos_token_id=end, use_cache=use_cache
        )
        for use_cache in (True, False)
    }
    assert torch.equal(found[True], found[False])
    for row, first in zip(found[True][:, 6:].tolist(), firsts):
        kept = first.tolist()
        kept = kept[: kept.index(end) + 1] if end in kept else kept
        assert row == kept + [258] * (len(row) - len(kept))
    guessed = hub.generate(texts['input_ids'], do_sample=False, max_new_tokens=9, eos_token_id=end)
    assert torch.equal(guessed, found[True])  # where padding is told from the ids


@pytest.mark.slow
def test_nothing_is_warned_of_when_it_is_opened_and_saved(written, tmp_path, caplog):
    hub = load(written(make_model(vocab_size=320, n_tokens=257)))
    hub.save_pretrained(tmp_path / 'again')
    assert not caplog.messages and load(tmp_path / 'again').config.pad_token_id == 258


@pytest.mark.slow
def test_the_standard_collator_learns_ends_and_no_padding(written):
    folder = written(make_model(vocab_size=320, n_tokens=257))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    texts = ['one<|endoftext|>', 'three four<|endoftext|>', 'five<|endoftext|>']
    batch = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)(
        [tokenizer(text) for text in texts]
    )
    assert (batch['labels'] == 256).sum() == 3
    assert torch.equal(batch['labels'] == -100, batch['attention_mask'] == 0)


@pytest.mark.slow
def test_a_pipeline_fills_blanks(written):
    model = make_model(vocab_size=320, n_tokens=257, attention='bidirectional').float()
    fill = transformers.pipeline('fill-mask', model=written(model), trust_remote_code=True)
    best = fill('tw<|mask|> and', top_k=3)
    idx, order = torch.tensor([[*b'tw', 0, *b' and']]), torch.tensor([[0, 1, 3, 4, 5, 6, 2]])
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
    (whole,) = lm.loglikelihood_rolling(
        [asked('two and two')]
    )  # behind an end of text, where eval_lm.py has [None]
    assert whole == pytest.approx(logp([256, *b'two and two'], 1), abs=1e-4)


# ---- device maps of accelerate

KINDS = [
    dict(),
    dict(target_position='input', gpt2_blocks=True),
    dict(target_position='two_stream'),
    dict(attention='mixed'),
]
IDX, PLACES = torch.tensor([[7, 5, 0, 3], [1, 2, 0, 4]]), torch.arange(4).expand(2, -1)
CALLS = {
    'CausalLM': [
        lambda view: view(IDX).logits,
        lambda view: view.generate(IDX, do_sample=False, max_length=7),
    ],
    'MaskedLM': [lambda view: view(IDX.masked_fill(IDX == 0, V)).logits],
    '': [
        lambda view: view.predict(IDX, PLACES, 2),
        lambda view: view(IDX, PLACES, n_known_of(view)),
    ],
}


def n_known_of(view):
    return torch.tensor([2, 2]) if view.network.slots.masked_loss else None


def of_kind(sizes):
    return [name for name in CALLS if name != 'CausalLM' or sizes.get('attention') != 'mixed']


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
    accelerate = pytest.importorskip('accelerate')
    load = views(**sizes)[1]
    for name in of_kind(sizes):
        mapped, usual = load(name, device_map=how), load(name)
        assert all(torch.equal(call(mapped), call(usual)) for call in CALLS[name])
        size = sum(p.numel() * p.element_size() for p in usual.parameters())
        for room in (
            {0: 10 * size, 1: 10 * size},
            {0: size // 2, 1: 10 * size},
            {0: size // 2, 'cpu': 10 * size},
        ):
            found = accelerate.infer_auto_device_map(
                usual, max_memory=room, no_split_module_classes=usual._no_split_modules
            )
            assert len(set(found.values())) == 1 and not any(
                name.startswith('network.') for name in found
            )


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
    load = views(**sizes)[1]
    for name in of_kind(sizes):
        right, view = [call(load(name)) for call in CALLS[name]], load(name)
        view = offloads(str(tmp_path / f'kept-{name}'))[how](view)
        for call, expected in zip(CALLS[name], right):
            try:
                assert torch.equal(call(view), expected)
            except ValueError as e:
                assert 'offload' in str(e) and '\n' not in str(e)


@pytest.mark.slow
def test_a_model_that_moves_back_and_forth_is_right(views):
    accelerate = pytest.importorskip('accelerate')
    load = views()[1]
    view, hook = accelerate.cpu_offload_with_hook(load('CausalLM'), execution_device='cpu')
    assert torch.equal(view(IDX).logits, load('CausalLM')(IDX).logits)
    hook.offload()
    assert torch.equal(view(IDX).logits, load('CausalLM')(IDX).logits)
