"""What is the automaton of a regular expression over bytes?

outlines-core answers in this process, which does nothing else: an automaton may take any time and
any memory. The standard input holds the expression, and the standard output gets plain numbers. The
traceback of an error says why there are none."""

import array
import contextlib
import sys

MOST_SECONDS = 10
MOST_BYTES = 2_000_000_000
MOST_STATES = 20_000


def set_limits():
    """Limit the time and the memory of this process, as far as the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {
        resource.RLIMIT_CPU: MOST_SECONDS,
        resource.RLIMIT_AS: MOST_BYTES,
        resource.RLIMIT_CORE: 0,  # no file of what died
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def automaton(expression):
    """Return int32 numbers as bytes: for each state, the initial one first, the state behind each
    of the 256 bytes and behind the end of a text, which a final state alone has; -1 for none."""
    from outlines_core import Index, Vocabulary

    each_byte = {bytes([b]): [b] for b in range(256)}
    index = Index(expression, Vocabulary(256, each_byte))  # 256 is the end of a text
    edges = index.get_transitions()
    states = dict.fromkeys([index.get_initial_state(), *edges])
    if len(states) > MOST_STATES:
        raise MemoryError
    number = {state: i for i, state in enumerate(states)}

    numbers = array.array('i')
    for state in states:
        row = array.array('i', [-1]) * 257
        for byte, behind in edges.get(state, {}).items():
            row[byte] = number[behind]
        numbers += row
    return numbers.tobytes()


if __name__ == '__main__':
    set_limits()
    sys.stdout.buffer.write(automaton(sys.stdin.buffer.read().decode()))
