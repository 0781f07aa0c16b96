"""Write arrays or lists of integers as a set, as `python data/prepare.py tokens` does.

    python -m anyorder.extras.arrays --source=digits.npz --name=digits --shape=8x8

`python data/prepare.py --help` lists the options."""

import runpy
import sys
from pathlib import Path

PREPARE = Path(__file__).parents[3] / 'data' / 'prepare.py'

if __name__ == '__main__':
    if {'--help', '-h'} & {*sys.argv}:
        print(__doc__)
    else:
        sys.argv.insert(1, 'tokens')
        runpy.run_path(str(PREPARE), run_name='__main__')
