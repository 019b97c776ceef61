"""The writer of `mosaicml-streaming` without PyTorch.

The modules of the format are imported alone, without those for training, and packages that they import but do not need to write are
replaced by empty ones. What is written is therefore the work of the package itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

# Packages for training and for stores in clouds, which are not needed to write to a folder.
REPLACED = ("torch", "torchvision", "transformers", "boto3", "botocore", "tqdm", "filelock", "catalogue", "psutil")


class _Empty(types.ModuleType):
    """A module in which each name is a class without members."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for each replaced package that is not installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in REPLACED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _bare_package(name: str, folder: Path) -> None:
    """Registers a package without running its `__init__.py`."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


# Behind all other finders, so that a package that is installed is used.
sys.meta_path.append(_Finder())
_found = importlib.util.find_spec("streaming")
if _found is None or _found.origin is None:
    raise ImportError("mosaicml-streaming is not installed")
_bare_package("streaming", Path(_found.origin).parent)
_bare_package("streaming.base", Path(_found.origin).parent / "base")

from streaming.base.format.mds.encodings import get_mds_encodings, mds_decode, mds_encode  # noqa: E402
from streaming.base.format.mds.writer import MDSWriter  # noqa: E402

__all__ = ["MDSWriter", "get_mds_encodings", "mds_decode", "mds_encode"]
