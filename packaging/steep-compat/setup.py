"""Installs steep-compat.pth beside the module: Python reads it at start."""

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "steep-compat.pth"


class BuildPy(build_py):
    """Copies the .pth file, too."""

    def run(self):
        """Build the module, then copy the file."""
        super().run()
        self.copy_file(PTH, f"{self.build_lib}/{PTH}")

    def get_outputs(self, include_bytecode=True):
        """Add the file to the installed files."""
        return [*super().get_outputs(include_bytecode), f"{self.build_lib}/{PTH}"]

    def get_source_files(self):
        """Add the file to the source distribution."""
        return [*super().get_source_files(), PTH]


setup(cmdclass={"build_py": BuildPy})
