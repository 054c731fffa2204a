"""The errors that a user is shown, one clear line each."""


class DpmixError(Exception):
    """Something outside the program is wrong: shown as one line, without a traceback (exit code 1)."""

    exit_code = 1


class ConfigError(DpmixError):
    """The config or the command line is wrong (exit code 2).

    Parameters
    ----------
    problems : list of str
        One line per problem; all problems of a config are reported together.
    """

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class EngineError(DpmixError):
    """An engine failed in the midst of a run, which can go on from what is committed (exit code 1)."""


class DataError(DpmixError):
    """A data file cannot be read, or its events cannot be used (exit code 1)."""


class OutputError(DataError):
    """A run can no longer write its file or checkpoint; it can go on from what is committed (exit code 1)."""


def printable(text: str) -> str:
    """A text in one line that no terminal takes for a command: a name in a file may hold anything."""
    return "".join(c if c.isprintable() else " " for c in text)
