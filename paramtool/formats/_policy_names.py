"""Names that run programs or code, and modules from which nothing can be allowed."""

from __future__ import annotations

from collections.abc import Iterator


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
        "code": "InteractiveInterpreter InteractiveConsole interact compile_command",
        "torch": "load jit.load hub.load",
        "numpy": "load loads fromfile memmap",
    }.items()
    for name in _names(table)
)
"""Names that are unsafe to mention, in modules that also have harmless names, such as `builtins.int`."""
FORBIDDEN_MODULES = DANGEROUS_MODULES | frozenset(
    _names("""
    builtins __builtins__ types functools operator _operator io _io codecs _codecs copyreg inspect gc logging signal
    code cmd trace profile site threading _thread concurrent asyncio unittest tempfile tarfile zipfile joblib jsonpickle
    torch.hub torch.load torch.save torch.jit torch.package torch.serialization torch.storage torch.ops torch.classes
    torch.fx torch.export torch._inductor torch._dynamo torch.multiprocessing
    torch.utils.cpp_extension torch.utils.model_zoo torch.utils._config_module torch.utils.bottleneck
    torch.utils.collect_env
    torch.distributed.rpc torch.distributed.run torch.distributed.launch torch.distributed.elastic
    numpy.load numpy.loads numpy.fromfile numpy.memmap numpy.lib numpy.f2py numpy.testing numpy.distutils
    numpy.ctypeslib
""")
)
"""Modules from which nothing can be allowed by name; their submodules are included."""
ANYWHERE = frozenset(
    _names("os posix nt sys subprocess shutil socket ctypes importlib runpy pty builtins __builtins__")
)
"""Modules that are refused anywhere in a path, too: `torch.os.system` is `os.system`."""
