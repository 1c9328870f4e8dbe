"""Build a wheel of one package, `fedrepro`, that carries the files of a project: fedrepro/__init__.py."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FILES = [*runpy.run_path(str(ROOT / "fedrepro/__init__.py"))["files"](ROOT)]


class Build(build_py):
    def run(self) -> None:
        if self.editable_mode:
            return super().run()
        package = Path(self.build_lib, "fedrepro")
        for source, target in [(Path("fedrepro/__init__.py"), Path("__init__.py"))] + [
            (file, "project" / file) for file in FILES
        ]:
            self.mkpath(str((package / target).parent))
            self.copy_file(str(source), str(package / target))

    def get_source_files(self) -> list[str]:
        """What an sdist holds."""
        return ["fedrepro/__init__.py", *map(str, FILES)]


setup(cmdclass={"build_py": Build})
