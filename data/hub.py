"""Where a checkpoint comes from: a path, or hf:OWNER/REPO/path.pt on the Hugging Face hub."""
from data.prepare import TOKENIZERS, get_tokenizer, quiet_hub
from model import config_from_checkpoint, load_checkpoint


def local_path(name):
    """The local file of a checkpoint name: a path as it is, `hf:OWNER/REPO/path/in/repo.pt` through huggingface_hub.

    Raises ValueError in one line when the hub or the file cannot be reached."""
    if not name.startswith('hf:'):
        return name
    parts = name[3:].split('/')
    if len(parts) < 3:
        raise ValueError(f'a checkpoint on the hub is written hf:OWNER/REPO/path.pt, got {name}')
    from huggingface_hub import hf_hub_download
    quiet_hub()
    try:
        return hf_hub_download('/'.join(parts[:2]), '/'.join(parts[2:]))
    except Exception as e:   # many classes: no network, no such repository, no such file
        raise ValueError(f'cannot get {name} from the hub ({type(e).__name__}): check the name and the network, '
                         'or download the file and give its path') from None


def open_checkpoint(name):
    """(checkpoint dict, its tokenizer) of a name; files that do not say, as the published ones, have GPT-2's."""
    checkpoint = load_checkpoint(local_path(name))
    config, tokenizer = config_from_checkpoint(checkpoint), checkpoint.get('tokenizer', 'gpt2')
    if tokenizer not in TOKENIZERS:
        raise ValueError(f'{name} has the tokenizer {tokenizer!r}, known are {", ".join(TOKENIZERS)}')
    have, want = config.n_real, TOKENIZERS[tokenizer].n_tokens
    if have != want:
        raise ValueError(f'{name} has a vocabulary of {have} tokens, {tokenizer} has {want}: it was trained with another tokenizer')
    return checkpoint, get_tokenizer(tokenizer)
