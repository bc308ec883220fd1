"""The C++ that lets an older torch call a process group in Python.

Since 2.14 torch has that itself. For an older one, trampoline.cpp is compiled for the torch that
is there, once, and kept in the user's cache. It cannot be compiled in advance, because torch keeps
no ABI between versions. The process group is the same Python class for all versions.
"""

import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .._error import Error
from ._threads import NAME

# The oldest torch that this module is tested with, and the first whose C++ calls Python by itself.
OLDEST = "2.4"
WITHOUT_COMPILER = "2.14"

# Whether a process group in Python is itself a `Backend`.
IS_BACKEND = torch.__version__ >= WITHOUT_COMPILER

# Methods that trampoline.cpp offers instead.
_NOT_OFFERED = (
    "allreduce_sparse",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)

_SOURCE = Path(__file__).with_name("trampoline.cpp")
_MODULE = "switchml_trampoline"


class PlainBase:
    """What a process group inherits from where it is no `Backend`."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


Base: Any = Backend if IS_BACKEND else PlainBase

# The second name is the one before torch 2.6.
Options: Any = getattr(Backend, "Options", None) or dist.ProcessGroup.Options


def as_backend(group: Any) -> Backend:
    """What torch's C++ calls for a group in Python."""
    if IS_BACKEND:
        return group
    return _trampoline().PythonBackend(group, group.rank(), group.size())


def method_of(backend: Any, name: str) -> Callable[..., Any]:
    """A method of one of torch's own backends, which an older torch may not offer in Python."""
    if hasattr(backend, name):
        return getattr(backend, name)
    return functools.partial(getattr(_trampoline(), name), backend)


def can_delegate(name: str) -> bool:
    """Whether torch's own backends may have a method of this name."""
    return hasattr(Backend, name) or (not IS_BACKEND and name in _NOT_OFFERED)


def check() -> None:
    """Compiles what is to be compiled. Raises `Error` if that fails, or torch is too old."""
    if torch.__version__ < OLDEST:
        raise Error(f"torch {torch.__version__} is too old; {NAME} needs torch {OLDEST} or newer")
    if not IS_BACKEND:
        _trampoline()


@functools.cache
def _trampoline() -> ModuleType:
    command = _command()
    spec_of = importlib.util.spec_from_file_location
    path = str(_compiled(command))
    spec = spec_of(_MODULE, path, loader=ExtensionFileLoader(_MODULE, path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _command() -> list[str]:
    """The compiler and its arguments, without files.

    That is what torch.utils.cpp_extension does, which needs Ninja and setuptools. Torch does not
    bring them along.
    """
    folder = Path(torch.__file__).parent
    # Types of pybind11 are torch's own only if these settings are the same.
    abi = [
        f'-DPYBIND11_{name}="{value}"'
        for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
        if (value := getattr(torch._C, f"_PYBIND11_{name}", None)) is not None
    ]
    return [
        *shlex.split(os.environ.get("CXX", "c++")),
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-w",
        *abi,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-DTORCH_EXTENSION_NAME={_MODULE}",
        f"-I{folder / 'include'}",
        f"-I{folder / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        f"-L{folder / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        "-ltorch_python",
    ]


def _compiled(command: list[str]) -> Path:
    """The library, from the cache if it is there."""
    key = "\n".join(
        [*command, torch.__version__, sysconfig.get_config_var("SOABI"), _SOURCE.read_text()]
    )
    folder = _cache()
    library = folder / f"trampoline-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    # Of the ranks on a host, one compiles the library and the others wait for it.
    with open(library.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(command, library)
    return library


def _cache() -> Path:
    """A folder that only this user can write to: what is in it runs as this user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise Error(
            f"cannot keep compiled code for torch {torch.__version__}: {error}; set XDG_CACHE_HOME "
            "to a folder of yours"
        ) from None
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise Error(
            f"{folder} belongs to another user, or others may write to it; make it yours alone "
            "(chmod 700), or set XDG_CACHE_HOME to another folder"
        )
    return folder


def _compile(command: list[str], library: Path) -> None:
    needs = (
        f"torch {torch.__version__} needs a C++ compiler and Python's headers (on Debian: apt "
        f"install g++ python3-dev); torch {WITHOUT_COMPILER} and newer need neither"
    )
    if shutil.which(command[0]) is None:
        raise Error(f"no C++ compiler {command[0]!r}; {needs}")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise Error(f"no Python.h in {sysconfig.get_paths()['include']}; {needs}")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        # The source comes before the libraries that it needs.
        at = command.index("-shared")
        arguments = [*command[:at], str(_SOURCE), *command[at:], "-o", str(made)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            log = library.with_suffix(".log")
            log.write_text(shlex.join(arguments) + "\n" + done.stderr)
            raise Error(f"{command[0]} failed, and {log} says why; {needs}")
        made.rename(library)
