"""How does a room of several commands find the one that is typed?"""

import runpy
import sys

from anyorder.machine.terminal import one_line_errors
from configurator import configure


def run_one_of(namespace):
    """Run the module of a package that the first word of the command line names, with the others.

    namespace  globals of its __main__, whose WORDS are the modules"""
    with one_line_errors():
        (name,) = configure(namespace, sys.argv[1:2]).words
    del sys.argv[1]
    runpy.run_module(f'{namespace["__package__"]}.{name}', run_name='__main__', alter_sys=True)
