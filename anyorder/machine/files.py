"""How does a script meet the disk?

No file is half-written, names are checked first, a wrong file is one line."""

import bz2
import codecs
import contextlib
import errno
import glob
import gzip
import json
import lzma
import os
import re
import shutil


@contextlib.contextmanager
def whole_files(*paths):
    """Yield the names of temporary files for the body to write, which become `paths` together.

    They do so once all of them are whole; a file may be a folder, which becomes a new or an empty
    one. Each process has names of its own."""
    temporary = [f'{path}.{os.getpid()}.tmp' for path in paths]
    try:
        yield temporary
        flush(temporary)
        for name, path in zip(temporary, paths):
            os.replace(name, path)
    except Exception as e:
        cause = first_cause(e)
        if isinstance(cause, OSError) and cause.filename is None:
            cause.filename = os.fspath(paths[0])
        raise cause from None
    finally:
        for name in temporary:
            if os.path.isdir(name):
                shutil.rmtree(name)
            elif os.path.exists(name):
                os.remove(name)


def tidy(folder, kind=''):
    """Remove what killed processes have left of files *`kind` in a folder, which this process has
    for itself. A folder in it is another's."""
    for name in glob.glob(os.path.join(glob.escape(folder), f'*{kind}.*.tmp')):
        if not os.path.isdir(name):
            os.remove(name)


def flush(paths):
    """Have the files on the disk: a rename may survive a power cut that they would not."""
    for path in paths:
        if os.path.isdir(path):
            flush(os.path.join(path, name) for name in os.listdir(path))
            continue
        # Windows flushes only what may be written; what may not is a second name of a file
        with open(path, 'rb+' if os.access(path, os.W_OK) else 'rb') as f:
            os.fsync(f.fileno())


def first_cause(e):
    """Return the failure of the system, or the Ctrl-C, amid which `e` was raised; else `e` itself.

    An archive or a PDF that could not be written is closed, which fails again in other words."""
    cause = e
    while cause is not None:
        if isinstance(cause, OSError | KeyboardInterrupt):
            return cause
        cause = None if cause.__suppress_context__ else cause.__context__
    return e


def replace_file(path, data):
    """Write a result, whole.

    A link, as into a shared folder, stays one, and what it leads to is replaced. whole_files itself
    replaces the link: a checkpoint or a set never changes what may be another's."""
    with whole_files(os.path.realpath(path)) as (temporary,), open(temporary, 'wb') as f:
        f.write(data)


def name_too(path, other):
    """Give a file another name, too. What was there under this name is replaced at once."""
    with whole_files(other) as (temporary,):
        try:
            os.link(path, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(path, temporary)


def write_json(path, value):
    replace_file(path, (plain_json(value, 2) + '\n').encode())


def plain_json(value, indent=None):
    """Return the text of JSON, which has no Infinity: log 0 is null."""
    without_constants = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(without_constants, indent=indent)


@contextlib.contextmanager
def reading(path, what, way_out, n_letters=0):
    """Raise one ValueError if the body, which reads a file and does nothing else, fails at it.

    what       what the file should be, with its article
    way_out    what the user can do
    n_letters  of the words of the cause that are said, too

    The file is cut off then, or of another kind. Errors of the system, a lack of memory and of a
    package pass: the file may be fine."""
    try:
        yield
    except Exception as e:  # such a file fails in a dozen ways
        # gzip's own OSError has no number; in a zip that is cut off torch seeks before the start
        of_system = isinstance(e, OSError) and e.errno not in (None, errno.EINVAL)
        if of_system or isinstance(e, ImportError) or is_out_of_memory(e):
            raise
        words = ' '.join(str(e).split())
        why = f'{type(e).__name__}: {words:.{n_letters}}'.rstrip(': ')
        raise ValueError(f'{path} cannot be read as {what}: {way_out} ({why})') from None


def is_out_of_memory(e):
    """Return whether an exception says so. PyTorch raises several classes, in words that depend on
    device and system."""
    words = ('out of memory', 'allocate memory', 'not enough memory', 'ALLOC_FAILED')
    return isinstance(e, MemoryError) or any(said in str(e) for said in words)


class Unmarked(codecs.getincrementaldecoder('utf-8')):
    """UTF-8 without byte-order marks, U+FEFF.

    Editors put one in front of a text, and `cat` then leaves it amid a text; in neither place it is
    a letter."""

    def decode(self, data, final=False):
        return super().decode(data, final).replace('\ufeff', '')


UNMARKED = codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=Unmarked)
codecs.register({'utf_8_unmarked': UNMARKED}.get)


@contextlib.contextmanager
def reading_text(path, newline):
    """Yield an open text file for the body to read, without byte-order marks.

    A .gz, .xz or .bz2 is unpacked. `newline` is as for `open`."""
    openers = {'gz': gzip.open, 'xz': lzma.open, 'bz2': bz2.open}
    ending = os.fspath(path).lower().rsplit('.', 1)[-1]
    opener = openers.get(ending, open)
    with (
        reading(path, 'text', 'it must be whole, in UTF-8, and of the kind that its name says'),
        opener(path, 'rt', encoding='utf-8-unmarked', newline=newline) as f,
    ):
        yield f


def read_text(path):
    """Return what reading_text reads, with \\n for every end of a line."""
    with reading_text(path, None) as f:
        return f.read()


def read_json(path):
    """Return the dict of a JSON file. Raises ValueError for others."""
    with reading(path, 'names and values in JSON', 'fetch it again'):
        return {**json.loads(read_text(path))}


def check_names(**names):
    """Raise ValueError unless each option is a plain name of a file or folder."""
    for option, value in names.items():
        if not re.fullmatch(r'\w[\w.-]*', value):
            raise ValueError(
                f'--{option} must be a plain name of letters, digits, dots and dashes, without a '
                f'comma, got {value!r}'
            )


def check_folder(option, path):
    """Raise ValueError unless `option` names a folder that can be written to, there or still to be
    made."""
    there = os.path.abspath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not path or not is_writable(there):
        raise ValueError(f'{option} must name a folder that can be written to, got {path!r}')


def is_writable(folder):
    return os.access(os.path.join(folder, ''), os.W_OK)  # of a file with a slash behind it: no


def check_out(option, path, endings, *others):
    """Raise ValueError unless `option` names a file that can be written and overwrites no data and
    no checkpoint.

    path     '' is no file; a link stands for what it leads to, see replace_file
    endings  the file ends in one of these, as '.png, .svg'
    others   files of the run, none of which it is"""
    real = os.path.realpath(path)
    is_other = real in map(os.path.realpath, others) or os.path.isdir(real)
    is_taken = is_other or os.path.basename(real) == 'meta.json'
    fits = path.endswith(tuple(endings.split(', '))) and not is_taken
    if path and not (fits and is_writable(os.path.dirname(real))):
        raise ValueError(
            f'--{option}={path} must end in {endings}, be no folder, no file of this run and no '
            'meta.json, and stand in a folder that is there and can be written to'
        )


@contextlib.contextmanager
def asking_hub(name):
    """Let the body get what the hub has under a name, see `reading`, without the hub's own retries
    and warnings, which would bury our one line."""
    from huggingface_hub import logging

    logging.set_verbosity_error()
    way_out = 'check name and network, or download it and give its path'
    with reading(name, 'what the hub has', way_out, n_letters=200):
        yield
