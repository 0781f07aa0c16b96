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


@contextlib.contextmanager
def whole_files(*paths):
    """Yield the names of temporary files for the body to write, which become `paths` together.

    They do so once all of them are whole. Each process has names of its own."""
    temporary = [temporary_name(path) for path in paths]
    try:
        yield temporary
        flush(*temporary)
        for name, path in zip(temporary, paths):
            os.replace(name, path)
    except Exception as e:
        cause = first_cause(e)
        if isinstance(cause, OSError) and cause.filename is None:
            cause.filename = os.fspath(paths[0])
        raise cause from None
    finally:
        for name in temporary:
            if os.path.exists(name):
                os.remove(name)


def temporary_name(path):
    """Return a name beside `path` for this process to write to."""
    return f'{os.fspath(path)}.{os.getpid()}.tmp'


def tidy(folder, kind=''):
    """Remove what killed processes have left of files *`kind` in a folder, which this process has
    for itself."""
    for name in glob.glob(os.path.join(glob.escape(folder), f'*{kind}.*.tmp')):
        os.remove(name)


def flush(*paths):
    """Have the files on the disk: a rename may survive a power cut that they would not."""
    for path in paths:
        with open(path, 'rb+') as f:
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
    """Write a result, whole, see behind_link."""
    with whole_files(behind_link(path)) as (temporary,), open(temporary, 'wb') as f:
        f.write(data)


def behind_link(path):
    """Return the file to replace by a result of this name.

    A link, as into a shared folder, stays one, and what it leads to is replaced. whole_files itself
    replaces the link: a checkpoint or a set never changes what may be another's."""
    return os.path.realpath(path) if os.path.islink(path) else path


def write_json(path, value):
    replace_file(path, (plain_json(value, 2) + '\n').encode())


def plain_json(value, indent=None):
    """Return the text of JSON, which has no Infinity: log 0 is null."""
    without_constants = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(without_constants, indent=indent)


@contextlib.contextmanager
def reading(path, what, way_out):
    """Raise one ValueError if the body, which reads a file and does nothing else, fails at it.

    what     what the file should be, with its article
    way_out  what the user can do

    The file is cut off then, or of another kind. Errors of the system, a lack of memory and of a
    package pass: the file may be fine."""
    try:
        yield
    except Exception as e:  # such a file fails in a dozen ways
        if isinstance(e, ImportError) or is_out_of_memory(e) or is_of_system(e):
            raise
        raise ValueError(f'{path} cannot be read as {what}: {way_out}') from None


def is_of_system(e):
    """Return whether an exception of a read speaks of the system, not of what the file holds.

    gzip's own OSError has no number; in a zip that is cut off torch seeks before the start."""
    return isinstance(e, OSError) and e.errno not in (None, errno.EINVAL)


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


def check_names(**names):
    """Raise ValueError unless each option is a plain name of a file or folder."""
    for option, value in names.items():
        if not re.fullmatch(r'\w[\w.-]*', value):
            raise ValueError(
                f'--{option} must be a plain name of letters, digits, dots and dashes, without a '
                f'comma, got {value!r}'
            )


GPT2_NAMES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')  # on the hub
# what stands before the folder of somebody else's masked model, or before its name on the hub
MASKED = 'masked:'


def check_checkpoint(name):
    """Raise ValueError unless `name` is a checkpoint's file, a folder with a config.json, or may be
    one on the hub."""
    folder = name.removeprefix(MASKED)
    if os.path.isfile(os.path.join(folder, 'config.json')):
        return
    if folder != name:
        check_masked(name, folder)
        return
    if not os.path.isfile(name) and not on_hub(name):
        raise ValueError(
            f'no checkpoint file {name}; train one (python train.py config/quickstart.py) or name '
            'another'
        )


def check_masked(name, folder):
    """Raise ValueError unless a masked model of others, without a config.json here, may be on the
    hub."""
    if os.path.isdir(folder) or not re.fullmatch(r'\w[\w.-]*/[\w.-]+', folder):
        raise ValueError(
            f'{name} must name a folder with a config.json, or {MASKED}OWNER/REPO on the hub'
        )


def on_hub(name):
    """Return whether a checkpoint of this name is on the Hugging Face hub."""
    return name in GPT2_NAMES or name.startswith('hf:')


def check_folder(option, path):
    """Raise ValueError unless `option` names a folder that can be written to, there or still to be
    made."""
    there = os.path.abspath(path)
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    if not path or not os.path.isdir(there) or not os.access(there, os.W_OK):
        raise ValueError(f'{option} must name a folder that can be written to, got {path!r}')


def check_out(option, path, endings, *others):
    """Raise ValueError unless `option` names a file that can be written and overwrites no data and
    no checkpoint.

    path     '' is no file; a link stands for what it leads to, see behind_link
    endings  the file ends in one of these, as '.png, .svg'
    others   files of the run, none of which it is"""
    if not path:
        return
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    is_device = os.path.exists(path) and not os.path.isfile(path)
    if is_device or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ValueError(
            f'--{option}={path} must be a file in a folder that is there and can be written to'
        )
    is_other = any(os.path.realpath(other) == real for other in others)
    if is_other or 'meta.json' in (os.path.basename(path), os.path.basename(real)):
        raise ValueError(
            f'--{option}={path} would overwrite a file of this run or of a data set: '
            'choose another name'
        )
    if not path.endswith(tuple(endings.split(', '))):
        raise ValueError(f'--{option}={path} must end in {endings}')


def quiet_hub():
    """Silence the hub's own retries and warnings, which would bury our one line."""
    from huggingface_hub import logging

    logging.set_verbosity_error()


@contextlib.contextmanager
def asking_hub(name):
    """Raise one ValueError if the body, which gets what hf:`name` is, fails."""
    quiet_hub()
    try:
        yield
    except Exception as e:  # many classes: no network, no such repository, no such file
        raise ValueError(
            f'cannot get {name} from the hub ({type(e).__name__}): check name and network, '
            'or download it and give its path'
        ) from None
