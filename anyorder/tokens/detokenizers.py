"""How does the text of a benchmark become plain text again? By the detokenizers of the SEDD papers, as ordered rules.

A rule of detokenizers.json [a, b] puts b where a stands, ["regex", a, b] where the regular expression a fits. The hub
gives a blank line of WikiText as an empty string, and so do these."""
import json
import re
from pathlib import Path

RULES = json.loads(Path(__file__).with_suffix('.json').read_text(encoding='utf-8'))
WIKITEXT, PTB, LM1B, LAMBADA = (RULES[name] for name in ('wikitext', 'ptb', 'lm1b', 'lambada'))


def detokenize(text, rules):
    """The text after these rules, one after the other."""
    for *kind, old, new in rules:
        text = re.sub(old, new, text) if kind else text.replace(old, new)
    return text
