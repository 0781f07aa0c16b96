"""Prints which links, headings, files and options that the pages name are not there."""

import re
import sys
from pathlib import Path

PAGES = [Path('README.md'), *Path('docs').rglob('*.md'), *Path('results').rglob('*.md')]
SOURCES = '\n'.join(path.read_text() for path in Path().rglob('*.py'))
OURS = {''.join(x) for x in re.findall(r"^(\w+) = |add_argument\('--(\w+)'", SOURCES, re.MULTILINE)}
OTHERS = """help index no gpus ntasks nodes nnodes nproc_per_node node_rank master_addr master_port
standalone signals_to_handle log_samples model_args limit include_path use_cache output_path
apply_chat_template headless hide screenshot window"""

missing = []
for page in PAGES:
    text = page.read_text()
    for link in re.findall(r'\]\(([^):\s]+)\)|(?:src|srcset|href)="([^":]+)"', text):
        path, _, name = ''.join(link).partition('#')
        target = page.parent / path if path else page
        there = [None] if target.exists() else []
        if there and name:
            plain = re.sub(r'[^\w\n# -]', '', target.read_text().lower()).replace(' ', '-')
            there = re.findall(rf'^#+-{name}$', plain, re.MULTILINE)
        missing += [f'{page}: {path}#{name}'] if not there else []
    names = re.findall(r'`((?:anyorder|config|data|docs|results|tests)/[\w/]+\.\w+)`', text)
    missing += [f'{page}: {name}' for name in names if not Path(name).exists()]
    options = {*re.findall(r'--(\w+)', text)} - OURS - {*OTHERS.split()}
    missing += [f'{page}: --{option}' for option in options]
sys.exit('\n'.join(missing) or 0)
