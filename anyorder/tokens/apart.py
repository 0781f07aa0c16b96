"""How do the documents in a block stay apart? Its parts of documents are texts of their own."""

import torch
import torch.nn.functional as F

from anyorder.tokens.sets import PADDING
from configurator import check_choice
from model import Parts

LENGTH = 32  # tokens; for each so many a block has room for a document, for more if it must


def keeps_apart(documents):
    """Whether the option `documents` keeps them apart. Raises ValueError for another value."""
    check_choice('documents', documents, 'together', 'apart')
    return documents == 'apart'


def are_apart(meta, documents):
    """Whether the option `documents` keeps the documents in a block of a set apart; never of
    rows, of which a block has one.

    Raises ValueError where nothing says where they end."""
    if not keeps_apart(documents) or not meta.is_stream:
        return False
    if meta.eos is None:
        raise ValueError(
            f'{meta.name} is a stream without a token that ends documents: take '
            '--documents=together, or prepare it with --end=TOKEN'
        )
    return True


def begins_of(tokens, eos):
    """Return where the parts of documents begin in blocks (B, N), each of which `eos` ends.

    (B, P) in ascending order, N behind the last. P is N / LENGTH, or a power of two that is enough:
    a compiler or a recorded graph meets few shapes."""
    N = tokens.size(1)
    is_first = F.pad(tokens[:, :-1] == eos, (1, 0), value=True)
    most = int(is_first.sum(1).max())
    room = max(N // LENGTH, 1 << (most - 1).bit_length())
    begins = torch.where(is_first, torch.arange(N), N)
    return begins.sort(1).values[:, : min(room, N)].contiguous()


def rows_of_parts(tokens, given, begins):
    """Return (tokens, given, block) of the parts of blocks (B, N), each in a row of its own.

    Rows are (n, N), the longest part first, and PADDING, which counts as given, follows a part.
    `block` (n,) says whose part it is. Parts without a blank are left out."""
    N = tokens.size(1)
    ends = F.pad(begins[:, 1:], (0, 1), value=N)  # where the next one begins
    length = ends - begins  # (B, P)
    longest_first = length.flatten().argsort(descending=True, stable=True)
    block = longest_first // begins.size(1)
    begin = begins.flatten()[longest_first].unsqueeze(1)
    end = ends.flatten()[longest_first].unsqueeze(1)

    place = begin + torch.arange(N)  # (n, N), in the block
    is_padding = place >= end
    place = place.clamp(max=N - 1)
    rows = tokens[block].gather(1, place).masked_fill(is_padding, PADDING)
    costs_nothing = given[block].gather(1, place) | is_padding
    keep = ~costs_nothing.all(1)
    return rows[keep], costs_nothing[keep], block[keep]


def apart_first(order, given, begins, law):
    """Return orders (B, N) of blocks of one length whose documents, at `begins` (B, P), are apart,
    and n_given and n_blanks (B, P) of each part.

    Orders (B, N) become those of the parts, one after the other. Where an Order is of the `law`
    'random', a part is read as the block would read these positions; else as a document of this
    length alone, that is as the block would read its first positions. What is given, (B, N) by
    position, comes first in each part."""
    N = order.size(1)
    position = torch.arange(N, device=begins.device)
    parts = Parts.of(order, None, begins)  # which have their places as visits
    begin = parts.begin  # (B, N)
    place = position.expand_as(begin)
    if law != 'random':
        place = position - begin
    rank = order.argsort(1).gather(1, place)
    group = 2 * begin + ~given
    none = torch.zeros_like(begins)
    n_given = none.scatter_add(1, parts.number, given.long())
    n_blanks = none.scatter_add(1, parts.number, (~given).long())
    return (group * N + rank).argsort(1), n_given, n_blanks
