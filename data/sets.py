"""
What is a prepared set? A folder of meta.json and <split>.bin, tokens as little-endian uint16.
"""
import json
import os

from anyorder.files import whole_files, write_json


def read_meta(directory):
    """meta.json of a prepared data set, or {} when there is none."""
    path = os.path.join(directory, 'meta.json')
    try:
        with open(path) as f:
            meta = json.load(f)
        if not {'tokenizer', 'splits'} <= meta.keys():
            raise ValueError
        return meta
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        raise ValueError(f'{path} is not what data/prepare.py wrote: remove its folder and prepare the data set again') from None


def splits_there(directory, meta):
    """{split: what meta.json says of it} of the splits whose files are whole."""
    files = {s: os.path.join(directory, f'{s}.bin') for s in meta.get('splits', {})}
    return {s: meta['splits'][s] for s, path in files.items()
            if os.path.exists(path) and os.path.getsize(path) == 2 * meta['splits'][s]['tokens']}


def write_splits(directory, meta, others, origin, writers):
    """Make the splits of {split: write(path) -> info} beside the `others` that stay, then meta.json; returns the meta."""
    os.makedirs(directory, exist_ok=True)
    try:
        with whole_files(*(os.path.join(directory, f'{s}.bin') for s in writers)) as paths:
            new = {s: {**write(path), 'source': origin} for (s, write), path in zip(writers.items(), paths)}
    finally:
        if not os.listdir(directory):
            os.rmdir(directory)
    meta = {**meta, 'splits': {**others, **new}}
    write_json(os.path.join(directory, 'meta.json'), meta)
    return meta


def print_meta(out, meta, before, force):
    """What is in the folder now, and whether it was there before."""
    done = 'there already (--force replaces it)' if meta == before and not force else 'written'
    print(f"{os.path.join(out, meta['name'])}: {done}, tokenizer {meta['tokenizer']}")
    width = max(len(s['source']) for s in meta['splits'].values()) + 2
    print(f"{'split':<8}{'rows':>10}{'tokens':>16}{'bytes of text':>16}  {'source':<{width}}sha256")
    for split, s in meta['splits'].items():
        print(f"{split:<8}{s['rows']:>10,}{s['tokens']:>16,}{s['text_bytes']:>16,}  {s['source']:<{width}}{s['sha256'][:16]}...")
