"""The program run in this very process, for many short calls of which nobody is killed: quicker than a process each."""

import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
from unittest import mock

from stigmergy.cli.main import main
from tests.cli.conftest import Folder


class Here(Folder):
    """A folder in which the program runs."""

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        path, modules = list(sys.path), list(sys.modules)
        # A module that a test has written anew within the same second would be taken from the bytecode of a node.
        shutil.rmtree(self.path / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        try:
            with (
                contextlib.chdir(self.path),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                mock.patch.dict(os.environ, environment),
                mock.patch.object(sys, "dont_write_bytecode", True),
            ):
                code = main(arguments)
        except SystemExit as end:  # after --help and --version
            code = int(end.code or 0)
        finally:
            # A fleet's module is this folder's own; the next test has another one of the same name.
            sys.path[:] = path
            for name in [name for name in sys.modules if name not in modules]:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(self.path)):
                    del sys.modules[name]
        out.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.getvalue())
