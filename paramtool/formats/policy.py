"""Which names in pickles are unsafe, and which of them the user may allow.  Only this module decides that.

    unsafe     an unknown name that a pickle calls, or without which a tensor cannot be read; and any mention of a name
               that runs programs or code (below)
    allowed    by `allow_class`: an exact name, or, for classes that only hold data, a pattern; never anything in
               FORBIDDEN_MODULES
               by `allow_unknown`: everything

Known names are not unsafe: the constructors of a format (`torch/globals.py`), classes that only hold data (`INERT` in
`pickle/values.py`), members of enums (`pickle/_enum_classes.py`).

Nothing is imported or called either way: by allowing a name the user accepts a result without what it would have made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paramtool.errors import UnsafeError, UsageError, listed, some
from paramtool.formats.pickle.values import RENAMED
from paramtool.model.checkpoint import Unknown

# --- Names that run programs or code, and modules from which nothing can be allowed -----------------------------------


def _names(table: str) -> Iterator[str]:
    """The words of a table, without comments."""
    for line in table.splitlines():
        yield from line.partition("#")[0].split()


DANGEROUS_MODULES = frozenset(
    _names("""
    os posix nt posixpath ntpath subprocess _posixsubprocess _winapi pty sys shutil multiprocessing _multiprocessing
    commands popen2          # Python 2's, which pickle maps to today's (Lib/_compat_pickle.py)
    importlib _frozen_importlib _frozen_importlib_external _imp imp runpy codeop compileall py_compile marshal
    pickle _pickle cPickle pickletools dill cloudpickle shelve pkgutil zipimport zipapp pdb bdb timeit cProfile doctest
    pydoc lib2to3 idlelib ensurepip venv pip setuptools distutils
    socket _socket ssl _ssl http httplib urllib urllib2 urllib3 requests httpx aiohttp ftplib smtplib poplib imaplib
    nntplib telnetlib xmlrpc xmlrpclib socketserver SocketServer webbrowser antigravity
    ctypes _ctypes cffi mmap fileinput linecache sqlite3 winreg
    itertools functools _functools       # their objects call functions when others iterate over them
    cmd trace profile site jsonpickle
    torch.hub torch.utils.cpp_extension torch.utils.model_zoo torch.utils.bottleneck torch.utils.collect_env
    torch.utils.data.datapipes           # objects that unpickle what they are given
    torch.distributed.rpc torch.distributed.run torch.distributed.launch torch.distributed.elastic
    numpy.f2py numpy.testing numpy.distutils
""")
)
"""A mention of one of these modules is unsafe: no checkpoint needs them for its data."""
DANGEROUS_NAMES = frozenset(
    f"{module}.{name}"
    for module, table in {
        "builtins": """
            eval exec execfile compile __import__ open file input raw_input breakpoint apply getattr setattr delattr
            globals locals vars map filter reload help exit quit memoryview classmethod property __build_class__
        """,
        "io": "open open_code FileIO",
        "_io": "open open_code FileIO",
        "types": "FunctionType CodeType LambdaType ModuleType MethodType",
        "operator": "attrgetter methodcaller",
        "abc": "ABCMeta",
        "enum": "EnumMeta EnumType",
        "code": "InteractiveInterpreter InteractiveConsole interact compile_command",
        "torch": "load jit.load hub.load",
        "numpy": "load loads fromfile memmap",
        "joblib": "load",
        "joblib.numpy_pickle": "load NumpyUnpickler",
    }.items()
    for name in _names(table)
)
"""Names that are unsafe to mention, in modules that also have harmless names, such as `builtins.int`."""
FORBIDDEN_MODULES = DANGEROUS_MODULES | frozenset(
    _names("""
    builtins __builtins__ types operator _operator io _io codecs _codecs copyreg inspect gc logging signal
    code threading _thread concurrent asyncio unittest tempfile tarfile zipfile joblib
    torch.load torch.save torch.jit torch.package torch.serialization torch.storage torch.ops torch.classes
    torch.fx torch.export torch._inductor torch._dynamo torch.multiprocessing
    torch.utils._config_module
    numpy.load numpy.loads numpy.fromfile numpy.memmap numpy.lib numpy.ctypeslib
""")
)
"""Modules from which nothing can be allowed by name; their submodules are included."""
ANYWHERE = frozenset(
    _names("os posix nt sys subprocess shutil socket ctypes importlib runpy pty builtins __builtins__")
)
"""Modules that are refused anywhere in a path, too: `torch.os.system` is `os.system`."""


WILD = "*?["


def is_dangerous(path: str) -> bool:
    """Whether a name runs programs or code, so that its mention alone is unsafe."""
    return path in DANGEROUS_NAMES or _within(path, DANGEROUS_MODULES) or _reaches(path, ANYWHERE - {"builtins"})


def is_forbidden(path: str) -> bool:
    """Whether a name can never be allowed."""
    return _within(path, FORBIDDEN_MODULES) or _reaches(path, ANYWHERE)


def _within(path: str, modules: Iterable[str]) -> bool:
    """Whether a path is one of these modules, or inside one."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts) + 1))


def _reaches(path: str, modules: Iterable[str]) -> bool:
    """Whether a path leads through one of these modules; the last part of a path is a name, not a module."""
    return not set(modules).isdisjoint(path.split(".")[:-1])


def checked(allow_class: Sequence[str]) -> tuple[str, ...]:
    """The names and patterns of `allow_class`, with Python 3's module names; UsageError if one can never be allowed."""
    names = (allow_class,) if isinstance(allow_class, str) else tuple(allow_class)
    return tuple(map(_checked, names))


def _checked(name: str) -> str:
    module, dot, rest = name.partition(".")
    name = f"{RENAMED.get(module, module)}{dot}{rest}"
    fixed = name[: min((name.index(letter) for letter in WILD if letter in name), default=len(name))]
    if not name or name.startswith("."):
        raise UsageError(f"--allow-class {name!r}: not a name; expected MODULE.CLASS, or a pattern such as 'mylib.*'")
    if is_forbidden(fixed.rstrip(".")) or is_forbidden(fixed):
        raise UsageError(
            f"--allow-class {name!r}: can never be allowed: names in {_module_of(fixed)} can run programs or code, "
            "read files, or reach names that do",
            hint="allow the one class that holds data by its exact name",
        )
    return name


def _module_of(path: str) -> str:
    """The forbidden module that a path is in, for messages."""
    parts = path.rstrip(".").split(".")
    heads = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((head for head in heads if head in FORBIDDEN_MODULES), path)


def is_unsafe(unknown: Unknown, allow_class: Sequence[str] = ()) -> bool:
    """Whether an unknown name makes its file unsafe; `allow_class` as `checked` gives it.

    A pattern allows classes that only hold data, and never a call.
    """
    if is_dangerous(unknown.path):
        return True
    return (unknown.called or bool(unknown.needed_by)) and unknown.path not in allow_class


def is_allowed(unknown: Unknown, allow_class: Sequence[str]) -> bool:
    """Whether the user has allowed this name."""
    if is_dangerous(unknown.path):
        return False
    if unknown.called or unknown.needed_by:
        return unknown.path in allow_class
    from fnmatch import fnmatchcase

    return any(unknown.path == name or fnmatchcase(unknown.path, name) for name in allow_class)


def unsafe(
    found: Iterable[Unknown], allow_class: Sequence[str] = (), allow_unknown: bool = False
) -> tuple[Unknown, ...]:
    """The unknown names that make a file unsafe."""
    return () if allow_unknown else tuple(one for one in found if is_unsafe(one, allow_class))


def refuse(
    files: Iterable[tuple[str, Iterable[Unknown]]],
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    *,
    besides: str = "",
    refused: Sequence[UnsafeError] = (),
    is_listed: bool = False,
) -> None:
    """UnsafeError if any of these files, each with its unknown names, is unsafe, or others are `refused` already.

    `besides` is another error.  What they hold was listed already, if `is_listed`.
    """
    bad = {where: found for where, asked in files if (found := unsafe(asked, allow_class, allow_unknown))}
    if not (bad or refused):
        return
    from shlex import quote

    steps = list(dict.fromkeys(error.hint for error in refused if error.hint))
    if len(bad) == 1 and not (besides or refused or is_listed):
        steps.append(f"`paramtool inspect {quote(next(iter(bad)))}` lists what is in the file")
    every = [one for found in bad.values() for one in found]
    names = list(dict.fromkeys(one.path for one in every if not (is_forbidden(one.path) or is_dangerous(one.path))))
    if names and len(names) == len({one.path for one in every}) <= MANY:
        classes = " ".join(f"--allow-class {quote(name)}" for name in names)
        steps.append(f"if you know {'these classes' if len(names) > 1 else 'this class'}, {classes}")
    message = "\n".join([*(_message(*one) for one in bad.items()), *(error.message for error in refused)])
    raise UnsafeError(message + (f"\nbesides, {besides}" if besides else ""), "; ".join(steps))


def _message(where: str, bad: Sequence[Unknown]) -> str:
    head = f"{where}: unsafe: it calls or names objects that are not known to only hold data; nothing was run:"
    return listed(head, [format_unknown(one) for one in bad])


def format_unknown(unknown: Unknown) -> str:
    """What a pickle does with an unknown name, for messages."""
    needed = f", needed by {some(unknown.needed_by, 3)}" if unknown.needed_by else ""
    return f"{unknown.path}, named{needed}" if not unknown.called else f"{unknown.path}{unknown.arguments}{needed}"


MANY = 6
"""The most names that a hint lists as options."""


def merged(found: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """One item for each name: a call outweighs a mention, and the tensors that need it are combined."""
    made: dict[str, Unknown] = {}
    for one in found:
        old = made.get(one.path)
        if old is None:
            made[one.path] = one
        else:
            strongest = one if one.called and not old.called else old
            needed = tuple(dict.fromkeys((*old.needed_by, *one.needed_by)))
            made[one.path] = Unknown(one.path, strongest.called, strongest.arguments, needed)
    return tuple(made.values())
