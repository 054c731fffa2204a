"""One channel of a data file."""

from __future__ import annotations

from dataclasses import dataclass

from dpmix.model.mixture import Array


@dataclass(frozen=True)
class Channel:
    """Metadata of one channel of a data file.

    Attributes
    ----------
    detector : str
        Name in the file ($PnN, or the header of a column).
    marker : str
        Stained marker ($PnS), "" where the file names none.
    range : float or None
        Upper bound of the values ($PnR), None where the file has none.
    log : (float, float) or None
        Decades d and offset f of a logarithmic amplifier ($PnE): the linear value is f 10^(d x / range).
    gain : float
        Amplifier gain ($PnG); stored values are not divided by it.
    integer : bool
        Values are stored as integers.
    numeric : bool
        Values are numbers.
    """

    detector: str
    marker: str = ""
    range: float | None = None
    log: tuple[float, float] | None = None
    gain: float = 1.0
    integer: bool = False
    numeric: bool = True

    def linearized(self, values: Array) -> Array:
        """Return values of a logarithmic amplifier, float64 [N], on the linear scale; others as they are."""
        if not self.log or not self.range:
            return values
        decades, offset = self.log
        return offset * 10.0 ** (decades * values / self.range)
