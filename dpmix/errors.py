"""The errors of dpmix, each shown to the user as one line."""


class DpmixError(Exception):
    """An error outside the program, shown as one line without a traceback (exit code 1).

    Parameters
    ----------
    text : str
        Control characters, which names in a file may contain, become spaces.
    """

    exit_code = 1

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class ConfigError(DpmixError):
    """The config or the command line is wrong (exit code 2).

    Parameters
    ----------
    problems : list of str
        One line per problem; all problems of a config are reported together.
    """

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = [printable(problem) for problem in problems]
        Exception.__init__(self, "\n".join(self.problems))


class EngineError(DpmixError):
    """An engine failed during a run, which can resume from its committed draws (exit code 1)."""


class DataError(DpmixError):
    """A data file cannot be read, or its events cannot be used (exit code 1)."""


class OutputError(DataError):
    """A run cannot write its file or checkpoint; it can resume from its committed draws (exit code 1)."""


def printable(text: str) -> str:
    """Return a text as one line without control characters, which names in a file may contain."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
