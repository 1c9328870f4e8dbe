"""Makes file operations below $FAULT_ROOT fail: the $FAULT_AT-th of every process, or with $FAULT_STAYS all
from there on, with the error number $FAULT_ERRNO. Python loads this module when it starts with this folder on
its path.

Operations are what CPython's audit events tell of: opening to write, making, renaming, linking, removing.
"""

import os
import sys

if at := int(os.environ.get("FAULT_AT", 0)):
    root, number = os.environ["FAULT_ROOT"], int(os.environ["FAULT_ERRNO"])
    stays, count = bool(os.environ.get("FAULT_STAYS")), 0
    changing = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}

    def hook(event, arguments):
        global count
        if event == "open":
            if not isinstance(arguments[0], (str, bytes)) or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in changing:
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(root) and not path.endswith(".pyc") and "__pycache__" not in path:
            count += 1
            if count == at or stays and count > at and event != "os.remove":
                raise OSError(number, os.strerror(number), path)

    sys.addaudithook(hook)
