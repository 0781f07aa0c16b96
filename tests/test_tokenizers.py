"""Text to tokens and back."""
import pytest

from data.tokenizers import GPT2, Bytes


def test_gpt2_tokens(monkeypatch, tmp_path):
    monkeypatch.setattr('tiktoken.load.read_file', lambda path: (_ for _ in ()).throw(OSError))   # the cache or nothing
    try:
        gpt2 = GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    text = 'hello world<|endoftext|> Grüße'
    ids = gpt2.encode(text)
    assert ids[:2] == [31373, 995] and gpt2.eos not in ids and gpt2.decode([*ids, gpt2.eos]) == text + '<|endoftext|>'
    assert gpt2.n_bytes[[*ids, gpt2.eos]].sum() == len(text.encode())


def test_gpt2_without_its_vocabulary_is_one_line(monkeypatch):
    import tiktoken
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: (_ for _ in ()).throw(ConnectionError('a\nlong story')))
    with pytest.raises(ValueError, match='--tokenizer=bytes') as e:
        GPT2()
    assert '\n' not in str(e.value)


def test_bytes_decode_what_is_no_text():
    tok = Bytes()
    assert tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�' and tok.decode(tok.encode('Grüße')) == 'Grüße'
