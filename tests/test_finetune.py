"""peft, TRL and transformers' Trainer train an exported model: their losses are those by hand."""

import runpy

import pytest
import torch
from conftest import ROOT, make_model
from torch.func import functional_call

from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint
from anyorder.extras.hub.exported import write_exported
from anyorder.tokens.tokenizers import get_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('hub_modules')]  # ten seconds of imports
transformers = pytest.importorskip('transformers')
peft = pytest.importorskip('peft')
trl = pytest.importorskip('trl')
N = 24
STEPS = 50
EOS = 256
PAIRS = [
    ('two and two: ', 'four'),
    ('colour of snow: ', 'white'),
    ('yes or no: ', 'no'),
    ('', 'begin'),
]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
    '{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}'
)


def as_messages(prompt, answer):
    user = {'role': 'user', 'content': prompt}
    return {'messages': [user, {'role': 'assistant', 'content': answer}]}


DATA = {
    'text': lambda prompt, answer: {'text': prompt + answer},
    'completion': lambda prompt, answer: {'prompt': prompt, 'completion': answer},
    'assistant': as_messages,
}


@pytest.fixture(params=[dict(), dict(target_position='input', gpt2_blocks=True)])
def folder(tmp_path, request):
    (tmp_path / 'hf').mkdir()
    model = make_model(vocab_size=320, n_tokens=257, block_size=N, **request.param).float()
    write_exported(tmp_path / 'hf', model, {}, get_tokenizer('bytes'), 'ema')
    return str(tmp_path / 'hf')


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def tokenizer_of(folder):
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def dataset_of(kind):
    from datasets import Dataset

    return Dataset.from_list([DATA[kind](*pair) for pair in PAIRS])


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)


def options(folder, kind=transformers.TrainingArguments, **more):
    return kind(
        output_dir=f'{folder}-out',
        max_steps=STEPS,
        per_device_train_batch_size=len(PAIRS),
        logging_steps=1,
        max_grad_norm=0,
        report_to='none',
        save_strategy='no',
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )


def optimizers(model):
    optimizer = adam([p for p in model.parameters() if p.requires_grad])
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def losses(trainer):
    trainer.train()
    return torch.tensor([entry['loss'] for entry in trainer.state.log_history if 'loss' in entry])


def by_hand(folder, answers_alone, weights=lambda own: own, trained=None):
    """Return the losses of STEPS steps of AdamW on the mean nll of tokens 1, 2, ... of documents.

    answers_alone  of those behind the prompts alone
    weights        makes the network's weights {name: p} of its own
    trained        the parameters, by default the network's"""
    model = model_from_checkpoint(folder).requires_grad_(trained is None)
    optimizer = adam(trained or model.parameters())
    found = []
    for _ in range(STEPS):
        nats = []
        for prompt, answer in PAIRS:
            idx = torch.tensor([[*prompt.encode(), *answer.encode(), EOS]])
            order = torch.arange(idx.size(1)).unsqueeze(0)
            nll = functional_call(model, weights(dict(model.named_parameters())), (idx, order))[0]
            first = len(prompt) if answers_alone else 0
            nats.append(nll[max(1, first) :])
        loss = torch.cat(nats).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.mark.parametrize('kind', DATA)
def test_trl_trains_as_torch_does(folder, kind):
    tokenizer = tokenizer_of(folder)
    tokenizer.chat_template = TEMPLATE
    model = load(folder)
    args = options(
        folder, trl.SFTConfig, max_length=N, bf16=False, assistant_only_loss=kind == 'assistant'
    )
    trainer = trl.SFTTrainer(
        model,
        args,
        train_dataset=dataset_of(kind),
        processing_class=tokenizer,
        optimizers=optimizers(model),
    )
    found = losses(trainer)
    expected = by_hand(folder, kind != 'text')
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found[-1] < 0.2 * found[0]
    trainer.save_model(f'{folder}-saved')
    assert digest(model_from_checkpoint(f'{folder}-saved')) == digest(model.network)


def test_peft_trains_as_torch_does_and_merged_weights_come_back(folder):
    lora = peft.LoraConfig(
        r=4, target_modules=['c_attn'], task_type='CAUSAL_LM', init_lora_weights=False
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(load(folder), lora)
    ab = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            name = name.removeprefix('base_model.model.network.')
            ab[name] = p.detach().clone().requires_grad_()

    def merged(own):
        """8 is the default of lora_alpha, and 4 is r."""
        own = dict(own)
        for name, a in ab.items():
            at, is_a, _ = name.partition('.lora_A')
            if is_a:
                b = ab[name.replace('lora_A', 'lora_B')]
                own[f'{at}.weight'] = own[f'{at}.weight'] + 8 / 4 * b @ a
        return own

    data = [padded(*pair) for pair in PAIRS]
    trainer = transformers.Trainer(
        model, options(folder), train_dataset=data, optimizers=optimizers(model)
    )
    found = losses(trainer)
    expected = by_hand(folder, False, merged, list(ab.values()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found[-1] < found[0] - 1
    text = torch.tensor([data[0]['input_ids'][:5]])
    with torch.no_grad():
        logits = model.eval()(input_ids=text).logits
    model.save_pretrained(f'{folder}-adapter')
    whole = model.merge_and_unload()
    torch.testing.assert_close(whole(text).logits, logits)
    whole.save_pretrained(f'{folder}-merged')
    assert digest(model_from_checkpoint(f'{folder}-merged')) == digest(whole.network)
    assert torch.equal(load(f'{folder}-merged')(text).logits, whole(text).logits)


def padded(prompt, answer):
    """Return a row of N tokens as the Trainer wants it."""
    row = [*prompt.encode(), *answer.encode(), EOS]
    idx = torch.full((N,), 0)
    idx[: len(row)] = torch.tensor(row)
    shown = torch.arange(N) < len(row)
    return {
        'input_ids': idx.tolist(),
        'attention_mask': shown.int().tolist(),
        'labels': idx.masked_fill(~shown, -100).tolist(),
    }


@pytest.mark.parametrize(
    'how',
    [
        dict(modules_to_save=['lm_head']),
        dict(modules_to_save=['wte']),
        dict(),
        dict(modules_to_save=['lm_head'], ensure_weight_tying=True),
    ],
)
def test_a_head_that_peft_trains_is_read_as_it_was_trained_or_refused(folder, how):
    """Where the network ties the head to the embedding, a copy of one of the two parts them."""
    lora = peft.LoraConfig(r=2, target_modules=['c_attn'], **how)
    model = peft.get_peft_model(load(folder), lora)
    text = torch.randint(EOS, (4, N), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    for _ in range(5):
        model(input_ids=text, labels=text).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    merged = model.merge_and_unload().eval()
    merged.save_pretrained(f'{folder}-merged')
    if merged.config.sizes.gpt2_blocks and how.keys() == {'modules_to_save'}:
        with pytest.raises(ValueError, match='a head of its own: .* ensure_weight_tying'):
            load_checkpoint(f'{folder}-merged')
        return
    with torch.no_grad():
        right = merged(input_ids=text, labels=text).loss
        own = model_from_checkpoint(f'{folder}-merged')
        nll = own(text, torch.arange(N).expand(4, -1))
    torch.testing.assert_close(nll[:, 1:].mean(), right)


def test_the_program_of_the_page_runs(folder, monkeypatch, tmp_path):
    with open(f'{ROOT}/docs/hub.md', encoding='utf-8') as f:
        _, _, section = f.read().partition('## Fine-tune it')
    _, program, *_ = section.split('```')
    program = program.removeprefix('python\n').replace('out/quickstart/hf', folder)
    program = program.replace('max_steps=50', 'max_steps=2, use_cpu=True')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'program.py').write_text(program)
    runpy.run_path('program.py')
    assert digest(model_from_checkpoint('out/merged')) != digest(model_from_checkpoint(folder))


@pytest.mark.parametrize(
    'how', [dict(target_modules='all-linear'), dict(target_modules=['wte', 'c_fc', 'lm_head'])]
)
def test_peft_adapts_any_layer(folder, how):
    lora = peft.LoraConfig(task_type='CAUSAL_LM', init_lora_weights=False, **how)
    model = peft.get_peft_model(load(folder), lora)
    text = torch.arange(5).unsqueeze(0)
    loss = model(input_ids=text, labels=text).loss
    loss.backward()
    assert loss.isfinite()
    for name, p in model.named_parameters():
        assert p.grad is not None or not p.requires_grad, name
    long = {'max_new_tokens': N - 5, 'do_sample': False, 'eos_token_id': None}
    cached = model.generate(input_ids=text, **long)
    assert torch.equal(cached, model.generate(input_ids=text, use_cache=False, **long))


@pytest.mark.parametrize(
    'more',
    [
        dict(label_smoothing_factor=0.1),
        dict(gradient_checkpointing=True),
        dict(gradient_accumulation_steps=2, per_device_train_batch_size=2),
    ],
)
def test_the_trainer_trains_on_whole_blocks(folder, more):
    """The last column of N tokens predicts nothing, and costs nothing."""
    model = load(folder)
    data = torch.randint(EOS, (4, N), generator=torch.Generator().manual_seed(0))
    rows = [{'input_ids': row, 'labels': row} for row in data]
    args = options(folder)
    args.max_steps = 3
    for name, value in more.items():
        setattr(args, name, value)
    trainer = transformers.Trainer(model, args, train_dataset=rows, optimizers=optimizers(model))
    found = losses(trainer)
    own = model_from_checkpoint(folder)
    logits = own.predict(data, torch.arange(N).expand(4, -1), N - 1, N, first=0)[:, 1:, :257]
    smooth = more.get('label_smoothing_factor', 0.0)
    expected = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), data[:, 1:], label_smoothing=smooth
    )
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize(
    'attention, smooth',
    [('bidirectional', 0.0), ('bidirectional', 0.1), ('mixed', 0.1), ('causal', 0.1)],
)
def test_a_collator_that_masks_whatever_it_labels_gives_the_loss_of_blanks(
    tmp_path, attention, smooth
):
    """Smoothing is the Trainer's, over all labels: a known token that had one would cost 1e4."""
    model = make_model(vocab_size=320, n_tokens=257, block_size=N, attention=attention).float()
    write_exported(tmp_path, model, {}, get_tokenizer('bytes'), 'ema')
    view = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=True)
    tokenizer = tokenizer_of(tmp_path)
    mask = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=0.5, mask_replace_prob=1.0, random_replace_prob=0.0
    )
    seen = []

    def collate(rows):
        seen.append(mask(rows))
        return seen[-1]

    rows = [
        tokenizer(f'{prompt}{answer}<|endoftext|>', return_special_tokens_mask=True)
        for prompt, answer in PAIRS
    ]
    args = options(
        str(tmp_path), label_smoothing_factor=smooth, remove_unused_columns=False, learning_rate=0.0
    )
    args.max_steps = 6
    found = losses(transformers.Trainer(view, args, train_dataset=rows, data_collator=collate))
    for loss, batch in zip(found, seen, strict=True):
        assert torch.equal(batch['input_ids'] == 257, batch['labels'] != -100)
        nats = []
        shown = batch['attention_mask'].bool()
        for idx, label, row in zip(batch['input_ids'], batch['labels'], shown):
            nats += nats_of_blanks(model, idx[row], label[row], smooth)
        torch.testing.assert_close(loss, torch.stack(nats).mean(), rtol=1e-4, atol=1e-4)
    learned = torch.cat([batch['labels'].flatten() for batch in seen])
    assert (learned == EOS).any()


def nats_of_blanks(model, idx, label, smooth):
    """Return the smoothed nats of the tokens of a text that have a label."""
    is_blank = label != -100
    known = (~is_blank).nonzero()[:, 0]
    blanks = is_blank.nonzero()[:, 0]
    if not len(blanks):
        return []
    order = torch.cat([known, blanks])[None]
    logits = model.predict(idx.clamp(max=256)[None], order, len(known))[0, :, :257]
    logp = logits.log_softmax(-1)
    nats = -logp.gather(1, label[blanks].unsqueeze(1))[:, 0]
    return [*((1 - smooth) * nats - smooth * logp.mean(1))]


@pytest.mark.parametrize('strategy', ['bfd', 'wrapped'])
def test_several_texts_in_a_row_are_refused_unless_they_are_one_text(folder, strategy):
    model = load(folder)
    args = options(
        folder, trl.SFTConfig, max_length=N, bf16=False, packing=True, packing_strategy=strategy
    )
    trainer = trl.SFTTrainer(
        model,
        args,
        train_dataset=dataset_of('text'),
        processing_class=tokenizer_of(folder),
        optimizers=optimizers(model),
    )
    if strategy == 'bfd':
        with pytest.raises(ValueError, match='must be left out: .* input_ids, one text a row'):
            trainer.train()
        return
    found = losses(trainer)
    assert found[-1] < found[0]


@pytest.mark.parametrize('reference', ['lora', 'ref_model', 'trust_remote_code'])
def test_preferences_are_learned_beside_a_reference(folder, reference):
    from datasets import Dataset

    rows = [{'prompt': prompt, 'chosen': answer, 'rejected': 'other'} for prompt, answer in PAIRS]
    args = options(
        folder,
        trl.DPOConfig,
        max_length=N,
        bf16=False,
        learning_rate=1e-2,
        trust_remote_code=reference == 'trust_remote_code',
    )
    args.max_steps = 5
    more = {}
    if reference == 'lora':
        lora = peft.LoraConfig(r=4, target_modules=['c_attn'], task_type='CAUSAL_LM')
        more = {'peft_config': lora}
    elif reference == 'ref_model':
        more = {'ref_model': load(folder)}
    trainer = trl.DPOTrainer(
        load(folder),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer_of(folder),
        **more,
    )
    found = losses(trainer)
    torch.testing.assert_close(found[0], torch.tensor(2.0).log())
    assert found[-1] < found[0]
