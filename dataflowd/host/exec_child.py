"""Starts a program that dies with its parent: `python -I -S exec_child.py PARENT USER ARGV...`, called by supervise.

This process asks the kernel for SIGKILL at its parent's death (PR_SET_PDEATHSIG, which survives exec), and then becomes
the program by exec. A preexec_fn would do the same, but it runs Python code in a fork of a daemon that has threads. If
the parent died before the request, the kernel sends nothing: so the parent's pid is compared afterwards. With a USER the
process changes to that user first, because a later change of user would cancel the request.
"""

import ctypes
import os
import pwd
import signal
import sys
import warnings  # noqa: F401 - execvp imports it, and USER may not be able to read this Python's files

PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE = 126
NOT_FOUND = 127


def main() -> None:
    parent, user, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if user:
        become(user)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    # Python ignores these two signals, and a program inherits ignored signals.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606 - the purpose of this file; there is no shell
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be executed: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE)


def become(user: str) -> None:
    try:
        found = pwd.getpwnam(user)
        os.initgroups(user, found.pw_gid)
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
    except (KeyError, OSError) as error:
        sys.stderr.write(f"this process cannot become the user {user}: {error}\n")
        sys.exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    main()
