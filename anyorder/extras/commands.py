"""How does a room of several commands find the one that is typed?"""

import runpy
import sys

from anyorder.machine.terminal import one_line_errors


def run_one_of(commands, package, about):
    """Run the module of a package that the first word of the command line names, with the others.

    commands  names of modules
    about     what --help alone says"""
    word = ''.join(sys.argv[1:2])
    if word in ('--help', '-h'):
        print(about)
        return
    with one_line_errors():
        if word not in commands:
            raise ValueError(f'the first word must be one of {", ".join(commands)}, got {word!r}')
    del sys.argv[1]
    runpy.run_module(f'{package}.{word}', run_name='__main__', alter_sys=True)
