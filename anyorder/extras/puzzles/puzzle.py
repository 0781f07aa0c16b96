"""What is a kind of puzzles?"""


class Puzzle:
    """A kind of puzzles, of which rows of tokens are made, told apart and judged.

    about    what it is, for --help
    symbols  the texts of its tokens
    options  of puzzles make, say which puzzles these are; meta.json keeps them
    made     {option: in words}: options that only say which of the puzzles are made
    n_train  puzzles to train on
    quick    whether a set that is missing is made when it is asked for
    shape    [H, W] of its grid, or None
    n_free   of its first tokens, which may be anything and are not judged

    A class of puzzles is made of these options. By itself this one judges rows without rules."""

    about = ''
    symbols = ()
    options = ()
    made = {}
    n_train = 100000
    quick = False
    shape = None
    n_free = 0

    def make(self, n_rows, rng, wanted, n_variants):
        """Return (tokens, given), both (n, N), of about n_rows puzzles that have one solution.

        n_variants  of a puzzle there may be so many, renamed and turned
        wanted      of keys, as of key below, (B, ...) -> (B,) bool: which puzzles are needed"""
        raise NotImplementedError

    def key(self, tokens):
        """Return what two splits may not share."""
        raise NotImplementedError

    def right(self, tokens, answer):
        """Return which tokens of `answer` are right, all (B, N): as in the only solution."""
        return answer == tokens
