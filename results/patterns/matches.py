"""Say how many of the texts that sample.py wrote match their patterns: by Python's own re.

    python results/patterns/matches.py dates.json person.json

The files are those of --out, a line is printed for each."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import json
import re
from pathlib import Path

from anyorder.checkpoint import open_checkpoint
from anyorder.extras.patterns.spelled import spelled
from anyorder.machine.terminal import one_line_errors


def main(path):
    result = json.loads(Path(path).read_text())
    tokenizer = open_checkpoint(result['config']['ckpt']).tokenizer
    found = [match for sample in result['samples'] for match in matches(sample, tokenizer)]
    print(f'{path}: {sum(found)} of {len(found)} match in {len(result["samples"])} texts')


def matches(sample, tokenizer):
    """Yield whether each part of a sample that has a pattern matches it."""
    names = spelled(tokenizer)
    for start, end, pattern in sample['patterns']:
        text = b''.join(names.tokens[token] for token in sample['tokens'][start:end])
        text = text.removeprefix(names.separator).decode(errors='replace')
        yield re.fullmatch(pattern, text) is not None


if __name__ == '__main__':
    with one_line_errors():
        for path in sys.argv[1:]:
            main(path)
