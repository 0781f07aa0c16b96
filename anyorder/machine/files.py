"""
Disk: files that are never half-written, names and folders that are checked before the work begins.
"""
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


def flush(*paths):
    """Have the files on disk, so that a rename that survives a power cut finds them whole."""
    for path in paths:
        with open(path, 'rb+') as f:
            os.fsync(f.fileno())


@contextlib.contextmanager
def whole_files(*paths):
    """The names of temporary files for the body to write. They become `paths` together, when all of them are whole."""
    temporary = [f'{path}.tmp' for path in paths]
    try:
        yield temporary
        flush(*temporary)
        for name, path in zip(temporary, paths):
            os.replace(name, path)
    except Exception as e:
        cause = cause_of(e)
        if isinstance(cause, OSError) and cause.filename is None:
            cause.filename = os.fspath(paths[0])
        raise cause from None
    finally:
        for name in temporary:
            if os.path.exists(name):
                os.remove(name)


def cause_of(e):
    """The error of the system or the interruption behind an exception, else the exception itself.

    An archive or a PDF whose writer was stopped is closed, and that fails again, in words of another kind."""
    cause = e
    while cause is not None and not isinstance(cause, OSError | KeyboardInterrupt):
        cause = cause.__context__
    return cause or e


@contextlib.contextmanager
def whole_folder(path):
    """The name of a temporary folder for the body to fill. It becomes `path`, which is new or an empty folder, when it
    is whole."""
    path = os.path.abspath(path)
    temporary = f'{path}.{os.getpid()}.tmp'
    os.makedirs(temporary)
    try:
        yield temporary
        flush(*(os.path.join(temporary, name) for name in os.listdir(temporary)))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_file(path, data):
    with whole_files(path) as (temporary,), open(temporary, 'wb') as f:
        f.write(data)


def write_json(path, value):
    replace_file(path, (json.dumps(value, indent=2) + '\n').encode())


@contextlib.contextmanager
def reading(path, what, way_out):
    """The body reads a file. Whatever it raises over a file that is cut off or of another kind is one ValueError.

    what     what the file should be, with its article
    way_out  what the user can do
    Errors of the system and a lack of memory pass: the file may be fine. The body should do nothing but read."""
    try:
        yield
    except Exception as e:   # such a file fails in a dozen ways
        # gzip's own OSError has no number; in a zip that is cut off torch seeks a place before its start
        if is_out_of_memory(e) or isinstance(e, OSError) and e.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f'{path} cannot be read as {what}: {way_out}') from None


@contextlib.contextmanager
def reading_text(path, newline):
    """A text file, also .gz and .xz, for the body to read."""
    opener = {'gz': gzip.open, 'xz': lzma.open}.get(path.rsplit('.', 1)[-1], open)
    with (reading(path, 'text', 'it must be whole, in UTF-8, and of the kind that its name says'),
          opener(path, 'rt', encoding='utf-8-sig', newline=newline) as f):
        yield f


def check_names(**names):
    for option, value in names.items():
        if value is not None and not re.fullmatch(r'\w[\w.-]*', value):
            raise ValueError(f'--{option} must be a plain name of letters, digits, dots and dashes, got {value!r}')


def moved_aside(path):
    """The name that the file `path` of an earlier run got last, when a new run moved it aside; None if none did."""
    found = [name for name in glob.glob(f'{glob.escape(path)}.old-*') if name.rpartition('-')[2].isdigit()]
    return max(found, key=lambda name: int(name.rpartition('-')[2]), default=None)


GPT2_NAMES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')   # of the hub


def on_hub(name):
    """Whether the name of a checkpoint is one of the Hugging Face hub."""
    return name in GPT2_NAMES or name.startswith('hf:')


MASKED = 'masked:'   # before the folder of somebody else's masked model, or its name on the hub


def check_checkpoint(name):
    """The file of a checkpoint or the folder of a GPT-2 must be there; names of the hub are looked for later. A masked
    model of others is a folder with a config.json, or OWNER/REPO."""
    if name.startswith(MASKED):
        folder = name.removeprefix(MASKED)
        if not os.path.isfile(os.path.join(folder, 'config.json')) and (
                os.path.isdir(folder) or not re.fullmatch(r'\w[\w.-]*/[\w.-]+', folder)):
            raise ValueError(f'{name} must name a folder with a config.json, or as {MASKED}OWNER/REPO one of the hub')
        return
    there = os.path.isfile(name) or os.path.isfile(os.path.join(name, 'config.json'))
    if os.path.isdir(name) and not there:
        raise ValueError(f'{name} is a folder without the config.json of export_hf.py or a GPT-2: name a checkpoint '
                         f"file, as {os.path.join(name, 'ckpt.pt')}")
    if not (there or on_hub(name)):
        older = moved_aside(name)
        raise ValueError(f'no checkpoint file {name}; ' + (f'that of an earlier run is now {older}' if older else
                         'train one (python train.py config/quickstart.py) or name another'))


def check_folder(option, path):
    """The folder that `option` names, there or still to be made, must be one that can be written to."""
    there = os.path.abspath(path)
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    if not path or not os.path.isdir(there) or not os.access(there, os.W_OK):
        raise ValueError(f'{option} must name a folder that can be written to, got {path!r}')


def check_new_folder(option, path):
    """The folder that `option` names must be still to be made, or empty, where one can be written."""
    check_folder(option, path)
    if os.path.isdir(path) and os.listdir(path):
        raise ValueError(f'{option} must name a new folder, and {path} holds files: choose another name, or remove it')


def quiet_hub():
    """The hub's own retries and warnings would bury our one line."""
    from huggingface_hub import logging
    logging.set_verbosity_error()


def check_out(option, path, endings, *others):
    """Check, before the work begins, the file to write that `option` names; '' is none.

    Its folder must exist and be writable. It must be none of the `others` of the run and end in one of `endings`
    ('.png, .svg'), so that it overwrites no data and no checkpoint."""
    folder = os.path.dirname(path) or '.'
    special = os.path.exists(path) and not os.path.isfile(path)   # a folder, a device
    if path and (special or not os.path.isdir(folder) or not os.access(folder, os.W_OK)):
        raise ValueError(f'--{option}={path} must be a file in a folder that is there and can be written to')
    if path and (os.path.realpath(path) in map(os.path.realpath, others) or os.path.basename(path) == 'meta.json'):
        raise ValueError(f'--{option}={path} would overwrite a file of this run or of a data set: choose another name')
    if path and not path.endswith(tuple(endings.split(', '))):
        raise ValueError(f'--{option}={path} must end in {endings}')


def need_extra(package, *version):
    """Raises ValueError in one line unless the package, one of requirements-extra.txt, is there. `version`, if given,
    is the oldest (major, minor)."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f'this needs {package}: pip install -r requirements-extra.txt')
    there = importlib.metadata.version(package)
    if tuple(map(int, re.findall(r'\d+', there)[:2])) < version:
        raise ValueError(f'this needs {package} {".".join(map(str, version))} or newer, {there} is there: '
                         'pip install -r requirements-extra.txt')


def is_out_of_memory(e):
    """Whether an exception means that. PyTorch raises several classes, worded by device and system."""
    words = ('out of memory', 'allocate memory', 'not enough memory')
    return isinstance(e, MemoryError) or any(said in str(e) for said in words)
