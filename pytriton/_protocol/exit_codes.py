"""Exit codes of the command line and the daemon, on which shells and supervisors rely.

`pytriton-daemon` and `python -m pytriton.dispatcher` use the same numbers; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit status of the command line and of the daemon; `meaning` describes it in a sentence."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    OK = 0, "Success; for a daemon: stopped on request, with nothing left behind."
    ERROR = 1, "An internal error, or a problem that `doctor` found."
    USAGE = 2, "An invalid command line, setting, settings file or argument."
    NO_DAEMON = 3, "No daemon is running in the runtime directory, or it does not answer."
    ALREADY_RUNNING = 4, "A daemon is already running in the runtime directory."
    PORT_IN_USE = 5, "A port that tritonserver should listen on is not free."
    SERVER_FAILED = (
        6,
        "tritonserver or the proxy's Python is missing, or tritonserver does not start.",
    )
    REGISTRATION_FAILED = (
        7,
        "A model could not be registered or changed, or no model has that name.",
    )
    #: EX_SOFTWARE of sysexits.h. A supervisor should restart the whole service.
    UNRECOVERABLE = 70, "A callable raised PyTritonUnrecoverableError: restart the service."
    #: 128 + SIGINT, the shell convention.
    INTERRUPTED = 130, "Interrupted from the keyboard."


#: Exit code of a worker that could not load its callable, and has sent WorkerFailed; possibly also of one whose callable
#: called os._exit().
WORKER_LOAD_FAILED = 3
#: Exit code of a worker whose callable raised PyTritonUnrecoverableError; possibly also of one whose callable called
#: sys.exit().
WORKER_UNRECOVERABLE = 4

#: Exit codes after which a supervisor should not restart the daemon: it was stopped on request, or the cause needs
#: manual action.
FINAL = (
    ExitCode.USAGE,
    ExitCode.ALREADY_RUNNING,
    ExitCode.PORT_IN_USE,
    ExitCode.INTERRUPTED,
)
