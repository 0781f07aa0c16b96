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
    of the 256 bytes and behind the end of a text, which a final state alone has; -1 for none.

    outlines-core takes the first alternative that matches: of a|ab it would never read ab to its
    end. The end of the text, \\z, keeps all of them until the text is over. And it would begin anew
    at every byte, which makes many states, unless nothing at all, behind the |, has matched. Both
    want two NULs before the text, which holds none: no state is behind a NUL."""
    from outlines_core import Index, Vocabulary

    tokens = {b'\0\0': [0]} | {bytes([b]): [b] for b in range(1, 256)}
    index = Index(rf'\x00\x00(?:{expression})\z|', Vocabulary(256, tokens))  # 256 is the end
    edges = index.get_transitions()
    before = edges.pop(index.get_initial_state())
    states = dict.fromkeys([before[0], *edges])
    if len(states) > MOST_STATES:
        raise MemoryError
    number = {state: i for i, state in enumerate(states)}

    numbers = array.array('i')
    for state in states:
        row = array.array('i', [-1]) * 257
        for byte, behind in edges[state].items():
            row[byte] = number[behind]
        row[0] = -1  # the two NULs, which a class or a dot of the expression fits, too
        numbers += row
    return numbers.tobytes()


if __name__ == '__main__':
    set_limits()
    sys.stdout.buffer.write(automaton(sys.stdin.buffer.read().decode()))
