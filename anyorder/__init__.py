"""All that the commands share: what one works with, and a room for each question behind it."""

from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

# imported when they are asked for: torch takes seconds, and patterns are a room of extras
LATER = {'Writer': 'anyorder.writer:Writer', 'Pattern': 'anyorder.extras.patterns.pattern:Pattern'}

# they lie beside this folder, and many projects have files of these names
for name in ('model', 'configurator'):
    ours = Path(__file__).parents[1] / f'{name}.py'
    found = find_spec(name).origin
    if not ours.samefile(found):
        raise ImportError(
            f'{found} stands in place of {ours}: rename it, or start Python in another folder'
        )


def __getattr__(name):
    if name in LATER:
        return resolve_name(LATER[name])
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
