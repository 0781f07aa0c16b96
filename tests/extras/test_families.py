"""anyorder/extras/masked/families.py: folders of others as commands name them.

And what the commands ask of a model."""

import json
import re
import shutil

import pytest
import torch
from conftest import one_line
from masked_kinds import KINDS, TEXT, write_tokenizer

pytest.importorskip('transformers')

from anyorder.checkpoint import digest, load_checkpoint, open_checkpoint
from anyorder.extras.hub.folders import read_weights
from anyorder.extras.masked import families
from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.machine.files import MASKED
from anyorder.tokens.tokenizers import GPT2
from anyorder.writer import Writer
from model import Network

KNOWN = {  # the special tokens come last, in BERT's first
    'llada': MaskedConfig(40, 272, 271),
    'dream': MaskedConfig(2047, 273, 272, shift=True, banned=(271,), prefix=(271,)),
    'mdlm': MaskedConfig(38, 50257, 50257, prefix=(50256,), suffix=(50256,)),
    'bert': MaskedConfig(40, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)),
    'modernbert': MaskedConfig(40, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)),
}


def opened(folder):
    return open_checkpoint(f'masked:{folder}')


def change_config(folder, **changes):
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize('kind', KINDS)
def test_a_folder_is_read_without_its_code_and_gives_the_logits_of_its_authors(folders, kind):
    oracle, folder = folders(kind)
    checkpoint = opened(folder)
    assert checkpoint.config == KNOWN[kind]
    assert checkpoint.about('ema').startswith(f'masked:{folder}: ')
    network = checkpoint.model().network
    tokens = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([oracle(row) for row in tokens])
    found = network(tokens).logits  # Llama has float32 within
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert digest(checkpoint.model()) == digest(opened(folder).model())


def test_kept_answers_are_of_one_config_json(tmp_path):
    KINDS['bert'](tmp_path)
    one = digest(opened(tmp_path).model())
    change_config(tmp_path, layer_norm_eps=0.1)
    assert digest(opened(tmp_path).model()) != one


def test_an_encoder_that_ends_its_texts_does_not_write_the_end(tmp_path):
    """It may call the token behind every text its end: a separator, which it never writes."""
    from transformers import AutoTokenizer

    KINDS['bert'](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({'bos_token': '[CLS]', 'eos_token': '[SEP]'})
    tokenizer.save_pretrained(tmp_path)
    checkpoint = opened(tmp_path)
    assert checkpoint.config == KNOWN['bert']
    assert checkpoint.tokenizer.eos is None


def test_a_text_is_neither_cut_nor_padded_by_what_its_tokenizer_last_did(tmp_path):
    from transformers import AutoTokenizer

    KINDS['bert'](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    whole = opened(tmp_path).tokenizer
    texts = [tokenizer.decode(range(5, 30)), tokenizer.decode(range(5, 9))]
    tokenizer(texts, truncation=True, max_length=8, padding='max_length')
    tokenizer.save_pretrained(tmp_path)
    file = json.loads((tmp_path / 'tokenizer.json').read_text())
    assert file['truncation']['max_length'] == 8  # as after training
    assert file['padding']
    checkpoint = opened(tmp_path)
    assert checkpoint.config == KNOWN['bert']
    for text in texts:
        assert list(checkpoint.tokenizer.encode(text)) == list(whole.encode(text))
    lengths = [len(row) for row in checkpoint.tokenizer.encode_batch(texts)]
    assert lengths == [len(row) for row in whole.encode_batch(texts)]
    assert lengths[0] > 8 > lengths[1]


def cut(folder):
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1])


def pickle_more(folder):
    torch.save({'weight': torch.zeros(1), 'what': json.loads}, folder / 'pytorch_model.bin')
    (folder / 'model.safetensors').unlink()


@pytest.mark.parametrize(
    'kind, changes, said',
    [
        ('llada', {'n_layers': 3}, 'weights do not fit config.json'),
        ('llada', {'include_qkv_bias': True}, 'include_qkv_bias'),
        ('mdlm', {'time_conditioning': True}, 'time_conditioning'),
        ('bert', {'num_hidden_layers': 3}, '16 weights do not fit config.json'),
        ('bert', {'intermediate_size': 20}, '6 weights do not fit config.json'),
        ('bert', {'hidden_size': 15}, 'makes no bert .ValueError: The hidden size'),
        ('dream', {'hidden_size': 'x'}, "makes no Dream .* 'hidden_size'"),
        ('llada', {'rope_scaling': {'type': 'linear', 'factor': 2.0}}, 'rope_scaling'),
        ('llada', {'weight_tying': True}, 'weight_tying'),
        ('dream', {'rope_parameters': {'rope_type': 'yarn'}}, 'rope_parameters'),
        ('bert', {'quantization_config': {'quant_method': 'gptq'}}, 'quantization_config'),
    ],
)
def test_a_config_that_fits_no_weights_is_one_line(folders, tmp_path, kind, changes, said):
    _, folder = folders(kind)
    there = shutil.copytree(folder, tmp_path / kind)
    change_config(there, **changes)
    check_is_refused(there, said)


@pytest.mark.parametrize(
    'spoil, name', [(cut, 'model.safetensors'), (pickle_more, 'pytorch_model.bin')]
)
def test_weights_that_are_not_whole_are_one_line(folders, tmp_path, spoil, name):
    _, folder = folders('bert')
    there = shutil.copytree(folder, tmp_path / 'bert')
    spoil(there)
    check_is_refused(there, f'{name} cannot be read as weights')


def check_is_refused(folder, said):
    """The folder makes no model, and the error is one line that names the folder."""
    with pytest.raises(ValueError, match=said) as e:
        opened(folder).model()
    assert '\n' not in str(e.value)
    assert str(folder) in str(e.value)


def test_older_names_of_weights_are_known(folders, tmp_path):
    _, folder = folders('bert')
    weights = {}
    for name, p in read_weights(folder).items():
        older = name.replace('LayerNorm.weight', 'LayerNorm.gamma')
        weights[older.replace('LayerNorm.bias', 'LayerNorm.beta')] = p
    there = shutil.copytree(folder, tmp_path / 'bert')
    (there / 'model.safetensors').unlink()
    torch.save(weights, there / 'pytorch_model.bin')
    assert digest(opened(there).model()) == digest(opened(folder).model())


@pytest.mark.parametrize(
    'template, said',
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", 'SecurityError'),
        ('{% for m in messages %}', 'SyntaxError'),
        ("{{ raise_exception('no system role') }}", 'no system role'),
        ('{{ messages[0].name.first }}', 'UndefinedError'),
    ],
)
def test_a_chat_template_that_fails_is_one_line(folders, tmp_path, template, said):
    there = shutil.copytree(folders('bert')[1], tmp_path / 'bert')
    (there / 'chat_template.jinja').write_text(template)
    tokenizer = opened(there).tokenizer
    said = f'{there} has a chat template .*{said}.*--apply_chat_template'
    with pytest.raises(ValueError, match=said) as e:
        tokenizer.chat([{'role': 'user', 'content': 'x'}])
    assert '\n' not in str(e.value)


NOT_UNDERSTOOD = (
    ', which is not understood: FOLDER may be aogpt, or gpt2, .*'
    'masked:FOLDER may be llada, Dream, mdlm, .*MaskedModel'
)


@pytest.mark.parametrize(
    'kind, prefix',
    [('gpt2', MASKED), (['bert'], MASKED), ('llama', MASKED), ('llama', ''), ('qwen2', '')],
)
def test_a_kind_that_is_not_understood_is_said(tmp_path, kind, prefix):
    (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind}))
    with one_line(re.escape(f'model_type={kind!r}') + NOT_UNDERSTOOD):
        open_checkpoint(f'{prefix}{tmp_path}')


def test_a_masked_model_wants_its_name(tmp_path, folders):
    (tmp_path / 'config.json').write_text('{"model_type": "llada"}')
    with one_line(f"model_type='llada': its name as a masked model is masked:{tmp_path}$"):
        open_checkpoint(tmp_path)
    _, bert = folders('bert')
    with pytest.raises(ValueError, match='masked model of others'):
        load_checkpoint(f'masked:{bert}')


def test_what_a_folder_lacks_is_said(tmp_path):
    config = {'model_type': 'llada', 'max_position_embeddings': 9}
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with pytest.raises(ValueError, match='holds no weights'):
        opened(tmp_path)
    (tmp_path / 'model.safetensors').write_bytes(b'')
    (tmp_path / 'tokenizer_config.json').write_text('{}')
    with pytest.raises(ValueError, match='has no vocabulary'):
        opened(tmp_path)
    (tmp_path / 'tokenizer.json').write_text('{}')
    with pytest.raises(ValueError, match='no tokenizer that can be'):
        opened(tmp_path)
    write_tokenizer(tmp_path, eos='<|endoftext|>')
    with pytest.raises(ValueError, match='a llada model lacks max_sequence_length'):
        opened(tmp_path)
    change_config(tmp_path, model_type='bert')
    with pytest.raises(ValueError, match='names no mask token'):
        opened(tmp_path)


@pytest.mark.parametrize('name', ['none', 'a_file'])
def test_a_folder_has_a_config_json(tmp_path, name):
    (tmp_path / 'a_file').write_text('')
    with pytest.raises(ValueError, match=r'folder with a config\.json'):
        opened(tmp_path / name)
    with pytest.raises(ValueError, match=r'folder with a config\.json'):
        opened('')


def test_transformers_must_be_there_and_new_enough(folders, monkeypatch):
    _, bert = folders('bert')
    with monkeypatch.context() as patch:
        # whose decoders stay causal
        patch.setattr('importlib.metadata.version', lambda name: '5.1.0')
        with pytest.raises(ValueError, match=r'5\.2 or newer, 5\.1\.0 is there'):
            opened(bert)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ValueError, match='pip install -r requirements-extra.txt'):
        opened(bert)


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind, head, embedding',
    [
        ('bert', 'cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
        ('modernbert', 'decoder.weight', 'model.embeddings.tok_embeddings.weight'),
    ],
)
def test_a_tied_head_is_read_as_it_is_stored(kind, head, embedding, folders, tmp_path):
    """Under either name, under both, in a wrapper, and as a head of its own where it is another."""
    shutil.copytree(folders(kind)[1], tmp_path, dirs_exist_ok=True)
    weights = read_weights(tmp_path)
    weights.pop(head, None)
    usual = model_of(weights, tmp_path)
    tokens = torch.arange(5, 14).unsqueeze(0)
    right = usual.network(tokens).logits

    both = weights | {head: weights[embedding]}
    found = model_of(both, tmp_path)  # of which transformers 5.2 makes two weights
    assert torch.equal(found.network(tokens).logits, right)

    alone = {name: p for name, p in both.items() if name != embedding}
    wrapped = {f'module._orig_mod.{name}': p for name, p in weights.items()}
    for stored in (alone, wrapped):
        found = model_of(stored, tmp_path)
        assert torch.equal(found.network(tokens).logits, right)
        assert digest(found) == digest(usual)

    apart = model_of(weights | {head: 2 * weights[embedding]}, tmp_path).network
    assert apart.get_output_embeddings().weight.equal(2 * apart.get_input_embeddings().weight)
    assert apart.get_input_embeddings().weight.equal(weights[embedding])


def model_of(weights, folder):
    """The model of a folder with these weights in place of its own."""
    from safetensors.torch import save_file

    copies = {name: p.clone() for name, p in weights.items()}
    save_file(copies, folder / 'model.safetensors', {'format': 'pt'})
    return opened(folder).model()


# ---- the commands


@pytest.mark.slow
def test_a_writer_says_what_is_unknown_and_begins_once(folders, capsys):
    folder = folders('bert')[1]
    capsys.readouterr()  # what making it says
    writer = Writer(f'masked:{folder}', device='cpu')
    how = {'length': 9, 'n_steps': 2, 'temperature': 0}
    texts = writer.infill(['aÄ[[2]]', 'b[[1]]c', 'Ö[[1]]'], **how)
    said = capsys.readouterr().err
    assert '2 of 5 tokens are unknown' in said
    assert "'Ä'" in said
    assert said.count('\n') == 1
    assert writer.infill('[CLS]b[[1]]c', **how) == texts[1]
    assert writer.logprob('[CLS]b[[=d]]') == writer.logprob('b[[=d]]')
    assert not capsys.readouterr().err
    with one_line("'Ä' is unknown"):
        writer.infill('a[[..]]', stop=['.', 'aÄ'])


class Spied:
    """A model that writes down what is asked of it; so does its config."""

    def __init__(self, model, asked, prefix=''):
        vars(self).update(_model=model, _asked=asked, _prefix=prefix)

    def __getattr__(self, name):
        self._asked.add(self._prefix + name)
        found = getattr(self._model, name)
        return Spied(found, self._asked, 'config.') if name == 'config' else found

    def __setattr__(self, name, value):
        self._asked.add(name)
        setattr(self._model, name, value)

    def __call__(self, *args, **options):
        self._asked.add('forward')
        return self._model(*args, **options)

    def __repr__(self):
        return repr(self._model)


@pytest.fixture
def asked(monkeypatch):
    """The names that are asked of masked models and of their configs."""
    names = set()
    model = families.MaskedCheckpoint.model

    def spied(*args):
        return Spied(model(*args), names)

    monkeypatch.setattr(families.MaskedCheckpoint, 'model', spied)
    return names


def sample_text(script, folder):
    which = [f'--ckpt=masked:{folder}', '--prompt=the [[3]] value is [[2]].', '--order=margin']
    files = ['--html=replay.html', '--out=samples.json']
    return script('sample.py', *which, *files, '--metrics=text').stdout


def score_text(script, folder):
    how = ['--prompt=the [[=qu]] fox', '--score', '--dtype=bfloat16']
    return script('sample.py', f'--ckpt=masked:{folder}', *how).stdout


def measure_text(script, folder, tmp_path):
    (tmp_path / 'text.txt').write_text(TEXT + TEXT + TEXT)
    which = [f'--ckpt=masked:{folder}', '--datasets=text.txt', '--out=ppl.json']
    how = ['--estimates=any,iw', '--orders=l2r', '--n_orders=2', '--n_blocks=2']
    return script('eval_ppl.py', *which, *how).stdout


def solve_puzzles(script, folder, tmp_path):
    prepare_puzzles('sudoku4', tmp_path / 'data', n_rows={'train': 20, 'val': 5, 'test': 6})
    which = [f'--ckpt=masked:{folder}', '--dataset=sudoku4', '--data_dir=data']
    how = ['--orders=random,margin', '--n_steps=0,3']
    return script('anyorder.extras.puzzles', 'solve', *which, *how).stdout


def test_sample_writes_by_a_masked_model(script, folders, tmp_path):
    _, llada = folders('llada')
    assert '5 steps for 5 tokens' in sample_text(script, llada)
    for sample in json.loads((tmp_path / 'samples.json').read_text())['samples']:
        assert 'the ' in sample['text']
        assert ' value is ' in sample['text']
    replay = (tmp_path / 'replay.html').read_text()
    found = re.search(r'<script.*?>(\{.*\})</script>', replay)[1]
    assert json.loads(found)['samples']


def test_a_masked_model_is_measured_and_solves_puzzles(script, folders, tmp_path):
    _, bert = folders('bert')
    assert 'left to right' in measure_text(script, bert, tmp_path)
    row, *_ = json.loads((tmp_path / 'ppl.json').read_text())['results']
    assert row['bits_per_byte'] is None
    assert row['nats_per_token'] > 0
    assert solve_puzzles(script, bert, tmp_path).count('margin') == 2


def test_the_commands_ask_for_what_is_documented_alone(script, folders, asked, tmp_path):
    _, llada = folders('llada')
    _, bert = folders('bert')
    sample_text(script, llada)
    score_text(script, bert)
    measure_text(script, bert, tmp_path)
    solve_puzzles(script, bert, tmp_path)
    about = re.search('Commands ask for (.*?), and for nothing', MaskedModel.__doc__, re.DOTALL)[1]
    of_config = re.search('config +(.*?), as', Network.__doc__)[1]
    documented = {*re.findall(r'\w+', about)}
    documented |= {f'config.{name}' for name in re.findall(r'\w+', of_config)}
    assert asked <= documented


def test_the_option_sets_the_dtype_and_without_it_the_file(folders):
    _, folder = folders('bert')
    writer = Writer(f'masked:{folder}', dtype='float32', device='cpu')
    assert dtypes_of(writer.network) == {torch.float32}
    assert dtypes_of(opened(folder).model()) == {torch.float64}
    assert writer.infill('the [[3]] fox', seed=3, n=2)[0].startswith('the ')
    assert Writer(f'masked:{folder}').logprob('the [[=q]]') < 0
    without = Writer(f'masked:{folder}', dtype='float32', device='cpu', use_cache=False)
    assert dtypes_of(without.network) == {torch.float32}


def dtypes_of(network):
    return {p.dtype for p in network.parameters()}


def test_symbols_of_a_task_have_the_ids_of_the_model(folders):
    from anyorder.extras.puzzles.solve import ids_of
    from anyorder.tokens.tokenizers import get_tokenizer

    _, bert = folders('bert')
    tokenizer = opened(bert).tokenizer
    one_to_four = [6, 7, 8, 9]  # behind five special tokens and 0
    assert ids_of(get_tokenizer('sudoku4'), tokenizer).tolist() == one_to_four
    assert ids_of(get_tokenizer('zebra4'), tokenizer) is None
    assert ids_of(get_tokenizer('sudoku4'), GPT2) is None


def test_puzzles_are_judged_in_the_symbols_of_the_task(folders, tmp_path):
    from anyorder.extras.puzzles.solve import ids_of, open_puzzles
    from anyorder.tokens.tokenizers import get_tokenizer
    from configurator import Config

    _, bert = folders('bert')
    checkpoint = opened(bert)
    sizes = {'n_latents': 3, 'n_observations': 1}
    prepare_puzzles('nae_sat', tmp_path, n_rows={'train': 1, 'val': 1, 'test': 4}, **sizes)
    options = Config(dataset='nae_sat', data_dir=tmp_path, split='test', n_puzzles=0, blanks='')
    puzzles = open_puzzles(checkpoint, options)
    zero, one = ids_of(get_tokenizer('nae_sat'), checkpoint.tokenizer).tolist()
    (no_bit,) = checkpoint.tokenizer.encode('x')
    assert puzzles.tokens.unique().tolist() == [zero, one]

    def right(answers):
        _, of_blanks = puzzles.check_answer(answers)
        return of_blanks[:, 3].tolist()

    assert right(puzzles.tokens) == [True, True, True, True]
    answers = [
        [zero, zero, zero, zero],
        [zero, one, zero, one],
        [zero, zero, zero, one],
        [zero, one, no_bit, one],
    ]
    assert right(torch.tensor(answers)) == [True, True, False, False]
