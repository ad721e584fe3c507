#!python
"""bin/steep of a wheel: becomes the program that lies in the package.

The program needs the libraries beside the package, and a wheel cannot say where its bin/ will be
from there. The package is not imported: a folder of sources on PYTHONPATH changes nothing.
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
