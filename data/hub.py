"""Checkpoints named hf:REPO/path.pt come from the Hugging Face hub, into its cache."""


def local_path(name):
    """The local file of a checkpoint name: a path as it is, `hf:OWNER/REPO/path/in/repo.pt` through huggingface_hub.

    Raises ValueError in one line when the hub or the file cannot be reached."""
    if not name.startswith('hf:'):
        return name
    parts = name[3:].split('/')
    if len(parts) < 3:
        raise ValueError(f'a checkpoint on the hub is written hf:OWNER/REPO/path.pt, got {name}')
    from huggingface_hub import hf_hub_download
    try:
        return hf_hub_download('/'.join(parts[:2]), '/'.join(parts[2:]))
    except Exception as e:   # many classes: no network, no such repository, no such file
        raise ValueError(f'cannot get {name} from the hub ({type(e).__name__}): check the name and the network, '
                         'or download the file and give its path') from None
