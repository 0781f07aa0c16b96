"""How does a script meet the disk? No file is half-written, names are checked first, a wrong file is one line."""

import bz2
import codecs
import contextlib
import errno
import glob
import gzip
import importlib.metadata
import importlib.util
import json
import lzma
import os
import re
import shutil

from anyorder.machine.locks import temporary_name, tidy


def flush(*paths):
    """Have the files on the disk: a rename may survive a power cut that they would not."""
    for path in paths:
        with open(path, 'rb+') as f:
            os.fsync(f.fileno())


@contextlib.contextmanager
def whole_files(*paths):
    """The names of temporary files for the body to write. They become `paths` together, once all of them are whole.
    Each process has names of its own. What a process that was killed has left of these files is removed."""
    for path in paths:
        tidy(glob.escape(os.fspath(path)))
    temporary = [temporary_name(path) for path in paths]
    try:
        yield temporary
        flush(*temporary)
        for name, path in zip(temporary, paths):
            os.replace(name, path)
    except Exception as e:
        cause = e  # an archive or a PDF that could not be written is closed, which fails once more in other words
        while cause is not None and not isinstance(cause, OSError | KeyboardInterrupt):
            cause = None if cause.__suppress_context__ else cause.__context__
        cause = cause or e
        if isinstance(cause, OSError) and cause.filename is None:
            cause.filename = os.fspath(paths[0])
        raise cause from None
    finally:
        for name in temporary:
            if os.path.exists(name):
                os.remove(name)


@contextlib.contextmanager
def whole_folder(path):
    """The name of a temporary folder for the body to fill. Once whole it becomes `path`, a new or an empty folder."""
    path = os.path.realpath(path)
    tidy(glob.escape(path))
    temporary = temporary_name(path)
    os.makedirs(temporary)
    try:
        yield temporary
        flush(*(os.path.join(temporary, name) for name in os.listdir(temporary)))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def behind_link(path):
    """The file to replace by a result of this name. A link, as into a shared folder, stays one, and what it leads to is
    replaced. whole_files itself replaces the link: a checkpoint or a set never changes what may be another's."""
    return os.path.realpath(path) if os.path.islink(path) else path


def replace_file(path, data):
    """Write a result, whole, see behind_link."""
    with whole_files(behind_link(path)) as (temporary,), open(temporary, 'wb') as f:
        f.write(data)


def plain_json(value, indent=None):
    """The text of JSON, which has no Infinity: log 0 is null."""
    return json.dumps(
        json.loads(json.dumps(value), parse_constant=lambda name: None), indent=indent
    )


def write_json(path, value):
    replace_file(path, (plain_json(value, 2) + '\n').encode())


@contextlib.contextmanager
def reading(path, what, way_out):
    """The body reads a file and does nothing else. A file that is cut off or of another kind is one ValueError.

    what     what the file should be, with its article
    way_out  what the user can do
    Errors of the system and a lack of memory pass: the file may be fine."""
    try:
        yield
    except Exception as e:  # such a file fails in a dozen ways
        # gzip's own OSError has no number; in a zip that is cut off torch seeks a place before the start
        if is_out_of_memory(e) or isinstance(e, OSError) and e.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f'{path} cannot be read as {what}: {way_out}') from None


class Unmarked(codecs.getincrementaldecoder('utf-8')):
    """UTF-8 without byte-order marks, U+FEFF. Editors put one in front of a text, and `cat` then leaves it amid a text;
    in neither place it is a letter."""

    def decode(self, data, final=False):
        return super().decode(data, final).replace('\ufeff', '')


UNMARKED = codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=Unmarked)
codecs.register({'utf_8_unmarked': UNMARKED}.get)


@contextlib.contextmanager
def reading_text(path, newline):
    """An open text file for the body to read, without byte-order marks. A .gz, .xz or .bz2 is unpacked."""
    openers = {'gz': gzip.open, 'xz': lzma.open, 'bz2': bz2.open}
    opener = openers.get(os.fspath(path).lower().rsplit('.', 1)[-1], open)
    with (
        reading(path, 'text', 'it must be whole, in UTF-8, and of the kind that its name says'),
        opener(path, 'rt', encoding='utf-8-unmarked', newline=newline) as f,
    ):
        yield f


def read_text(path):
    """What reading_text reads, with \\n for every end of a line."""
    with reading_text(path, None) as f:
        return f.read()


def check_names(**names):
    for option, value in names.items():
        if not re.fullmatch(r'\w[\w.-]*', value):
            raise ValueError(
                f'--{option} must be a plain name of letters, digits, dots and dashes, got {value!r}'
            )


def moved_aside(path):
    """The last name under which a new run moved the file `path` of an earlier run aside; None if none did."""
    found = [
        name
        for name in glob.glob(f'{glob.escape(path)}.old-*')
        if name.rpartition('-')[2].isdigit()
    ]
    return max(found, key=lambda name: int(name.rpartition('-')[2]), default=None)


GPT2_NAMES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')  # on the hub


def on_hub(name):
    """Whether a checkpoint of this name is on the Hugging Face hub."""
    return name in GPT2_NAMES or name.startswith('hf:')


MASKED = (
    'masked:'  # stands before the folder of somebody else's masked model, or its name on the hub
)


def check_checkpoint(name):
    """Raise ValueError unless `name` is a checkpoint's file, a folder with a config.json, or may be one on the hub."""
    folder = name.removeprefix(MASKED)
    if os.path.isfile(os.path.join(folder, 'config.json')):
        return
    if folder != name:
        if os.path.isdir(folder) or not re.fullmatch(r'\w[\w.-]*/[\w.-]+', folder):
            raise ValueError(
                f'{name} must name a folder with a config.json, or {MASKED}OWNER/REPO on the hub'
            )
    elif os.path.isfile(os.path.join(name, 'adapter_config.json')):
        raise ValueError(
            f"{name} is an adapter of peft: name the folder that the adapted model's merge_and_unload() "
            'saves by save_pretrained(FOLDER)'
        )
    elif os.path.isdir(name):
        raise ValueError(
            f'{name} is a folder without the config.json of export_hf.py or a GPT-2: name a checkpoint '
            f'file, as {os.path.join(name, "ckpt.pt")}'
        )
    elif not (os.path.isfile(name) or on_hub(name)):
        older = moved_aside(name)
        raise ValueError(
            f'no checkpoint file {name}; '
            + (
                f'an earlier run left {older}: to go on with it, take {older.removeprefix(name)} off the names of its files'
                if older
                else 'train one (python train.py config/quickstart.py) or name another'
            )
        )


def check_folder(option, path):
    """Raise ValueError unless `option` names a folder that can be written to, there or still to be made."""
    there = os.path.abspath(path)
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    if not path or not os.path.isdir(there) or not os.access(there, os.W_OK):
        raise ValueError(f'{option} must name a folder that can be written to, got {path!r}')


def quiet_hub():
    """Silence the hub's own retries and warnings, which would bury our one line."""
    from huggingface_hub import logging

    logging.set_verbosity_error()


def check_out(option, path, endings, *others):
    """Raise ValueError unless `option` names a file that can be written and overwrites no data and no checkpoint. The
    file ends in one of `endings` ('.png, .svg') and is none of the `others` of the run; a link stands for what it leads
    to, see behind_link. '' is no file."""
    if not path:
        return
    real, special = (
        os.path.realpath(path),
        os.path.exists(path) and not os.path.isfile(path),
    )  # a device
    folder = os.path.dirname(real)
    if special or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ValueError(
            f'--{option}={path} must be a file in a folder that is there and can be written to'
        )
    if real in map(os.path.realpath, others) or 'meta.json' in map(os.path.basename, (path, real)):
        raise ValueError(
            f'--{option}={path} would overwrite a file of this run or of a data set: choose another name'
        )
    if not path.endswith(tuple(endings.split(', '))):
        raise ValueError(f'--{option}={path} must end in {endings}')


def need_extra(package, *version):
    """Raise ValueError unless a package of requirements-extra.txt is there. `version` is its oldest (major, minor)."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f'this needs {package}: pip install -r requirements-extra.txt')
    there = importlib.metadata.version(package)
    if tuple(map(int, re.findall(r'\d+', there)[:2])) < version:
        raise ValueError(
            f'this needs {package} {".".join(map(str, version))} or newer, {there} is there: '
            'pip install -r requirements-extra.txt'
        )


def is_out_of_memory(e):
    """Whether an exception says so. PyTorch raises several classes, in words that depend on device and system."""
    words = ('out of memory', 'allocate memory', 'not enough memory')
    return isinstance(e, MemoryError) or any(said in str(e) for said in words)
