"""The exit codes of our processes: the contract with shells and with supervisors.

`pytriton-daemon` and `python -m pytriton.dispatcher` use the same numbers; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit status of the command line and of the daemon; `meaning` says it in a sentence."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    OK = 0, "It was done; for a daemon: it was asked to stop and left nothing behind."
    FAULT = 1, "An unexpected fault of ours, or a problem that `doctor` found."
    USAGE = 2, "A wrong command line, setting, settings file or argument."
    NO_DAEMON = 3, "No daemon runs in the runtime directory, or it does not answer."
    ALREADY_RUNNING = 4, "A daemon already runs in the runtime directory."
    PORT_IN_USE = 5, "A port that tritonserver should listen on is not free."
    NO_SERVER = 6, "tritonserver or the proxy's Python is missing, or tritonserver does not start."
    REGISTRATION = (
        7,
        "A model could not be registered or changed, or there is no model of that name.",
    )
    #: EX_SOFTWARE of sysexits.h. A supervisor should start the whole service again.
    UNRECOVERABLE = 70, "A callable raised PyTritonUnrecoverableError: start the service again."
    #: 128 + SIGINT, as shells say it.
    INTERRUPTED = 130, "Interrupted from the keyboard."


#: A worker whose callable raised PyTritonUnrecoverableError ends with it; so may one whose callable calls sys.exit().
WORKER_UNRECOVERABLE = 4

#: Ends of a daemon after which a supervisor should not start it again: it was asked to end, or what
#: stands in the way will not mend itself.
FINAL = (
    ExitCode.USAGE,
    ExitCode.ALREADY_RUNNING,
    ExitCode.PORT_IN_USE,
    ExitCode.INTERRUPTED,
)
