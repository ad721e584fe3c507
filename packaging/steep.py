#!python
"""The script bin/steep of a wheel: replaces itself by the program in the package.

The program must stay beside the package's libraries, and a wheel does not know the path from its
bin/ to the package. The script does not import the package, so that a source folder on PYTHONPATH
has no effect.
"""

import os
import signal
import site
import sys
import sysconfig

roots = [
    sysconfig.get_path("platlib"),
    site.getusersitepackages(),
    os.path.dirname(os.path.dirname(os.path.realpath(__file__))),  # pip install --target
    *site.getsitepackages(),
]
programs = [os.path.join(root, "steep", "bin", "steep") for root in roots]
program = next((path for path in programs if os.access(path, os.X_OK)), None)
if program is None:
    sys.exit(
        "steep: the program is not where pip has put it; install it again: "
        "pip install --force-reinstall steep"
    )
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, which execv would pass on
os.execv(program, sys.argv)
