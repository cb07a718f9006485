"""Import a job's files from memory. Standard library only; used inside of a box."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader

from agentrl.sandbox import asserts


class MemoryImporter:
    """Imports a job's files from memory, ahead of everything else, as if its root were ``sys.path[0]``.

    Args:
        files: path to text.
        rewritten: the paths of test files, whose asserts are made to tell what they compared.
        compiled: the code of files that were compiled already, by path.
    """

    def __init__(
        self, files: dict[str, str], rewritten: frozenset[str], compiled: Mapping[str, types.CodeType] | None = None
    ) -> None:
        self.files = files
        self.rewritten = rewritten
        self.hidden: dict[str, types.ModuleType] = {}
        self.compiled = dict(compiled or {})

    def install(self) -> None:
        """Put the files first on the import path; a standard module of the same name gives way to them."""
        sys.meta_path.insert(0, self)
        for name in self.roots():
            if name in sys.modules and name not in sys.builtin_module_names:
                self.hidden[name] = sys.modules.pop(name)

    def remove(self) -> None:
        """Take the files' modules out again."""
        sys.meta_path.remove(self)
        roots = self.roots()
        found = [name for name in sys.modules if name.partition(".")[0] in roots] if self.has_packages() else [*roots]
        for name in found:
            if name not in sys.builtin_module_names:
                sys.modules.pop(name, None)
        sys.modules.update(self.hidden)

    def renew(self) -> None:
        """Have the files imported anew."""
        self.remove()
        self.install()

    def has_packages(self) -> bool:
        """Whether a module of the files can have modules inside of it."""
        return any("/" in path for path in self.files)

    def roots(self) -> set[str]:
        """Names of the modules and packages at the top."""
        return {path.partition("/")[0].removesuffix(".py") for path in self.files}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """The spec of a module of the job, or None."""
        base = fullname.replace(".", "/")
        if base + "/__init__.py" in self.files:
            return spec_from_loader(fullname, self, origin=base + "/__init__.py", is_package=True)  # type: ignore[arg-type]
        if base + ".py" in self.files:
            return spec_from_loader(fullname, self, origin=base + ".py", is_package=False)  # type: ignore[arg-type]
        if any(name.startswith(base + "/") for name in self.files):
            return spec_from_loader(fullname, self, origin="", is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def load(self, name: str) -> types.ModuleType:
        """Import a module. One that stands alone is loaded without the import system, which touches much memory."""
        alone = "." not in name and name + ".py" in self.files and name + "/__init__.py" not in self.files
        if not alone or name in sys.builtin_module_names:
            return importlib.import_module(name)
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, self, origin=name + ".py")  # type: ignore[arg-type]
        module.__loader__, module.__package__ = self, ""  # type: ignore[assignment]
        sys.modules[name] = module
        try:
            self.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return sys.modules[name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's text; a test file's asserts are made to tell what they compared."""
        path = module.__spec__.origin if module.__spec__ is not None else None
        if not path:
            return
        module.__file__ = path
        if path in self.rewritten:
            module.__dict__.update(asserts.HELPERS)
        exec(self.code(path), module.__dict__)

    def code(self, path: str) -> types.CodeType:
        """The code of a file. Raises its SyntaxError."""
        code = self.compiled.get(path)
        if code is None:
            code = self.compiled[path] = self.compile(path)
        return code

    def compile(self, path: str) -> types.CodeType:
        """Compile a file. Raises its SyntaxError."""
        text = self.files[path]
        if path in self.rewritten:
            return asserts.compile_tests(text, path)
        return compile(text, path, "exec", dont_inherit=True)
