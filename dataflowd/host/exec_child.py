"""Becomes another program that dies with its parent: `python -I -S launch.py PARENT USER ARGV...`, run by supervise.

PR_SET_PDEATHSIG survives exec and is set here, in the child's own process: a preexec_fn would fork a daemon that has
threads. The parent may have died before the signal was asked for; its pid tells. With a USER it becomes that user
first, for good, which a change of user after the signal was asked for would undo.
"""

import ctypes
import os
import pwd
import signal
import sys
import warnings  # noqa: F401 - execvp imports it, and another user may not be able to read this Python's files

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
    # Python ignores these two, and ignored signals are inherited.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606 - that is what it is for; there is no shell
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
