"""Events of an FCS file as dpmix reads them, as a plain FCS file that other libraries read alike."""

from __future__ import annotations

import io
import math

import numpy as np

from dpmix.inputs.fcs.channels import number_of
from dpmix.inputs.fcs.data import read_events
from dpmix.inputs.fcs.header import Header
from dpmix.inputs.fcs.spillover import Spillover, numbers_named
from dpmix.inputs.fcs.text import HEADER_BYTES
from dpmix.model.mixture import Array

MARK = "\x0c"  # delimiter; `Header` has names and values without control characters
NO_DYES = ("fsc-", "ssc-", "time")  # starts of the other names, for FlowIO
KEPT = ("fil", "date", "btim", "etim", "cyt")


def plain_fcs(header: Header) -> io.BytesIO:
    """Return a data set as a file in memory: FCS 3.1, float64, without amplification.

    The names of channels and markers and the spillover matrix are as `header` has them.

    Raises
    ------
    DataError
        The events cannot be read.
    """
    n_channels = len(header.channels)
    keywords = {f"${name.upper()}": header.keywords[name] for name in KEPT if header.keywords.get(name)}
    keywords |= {"$BYTEORD": "1,2,3,4", "$DATATYPE": "D", "$MODE": "L", "$NEXTDATA": "0"}
    keywords |= {"$PAR": f"{n_channels}", "$TOT": f"{header.n_events}"}
    for n, channel in enumerate(header.channels, start=1):
        keywords |= {f"$P{n}N": channel.detector, f"$P{n}S": channel.marker, f"$P{n}B": "64"}
        keywords |= {f"$P{n}E": "0,0", f"$P{n}R": f"{channel.range or 1.0:g}"}
    if header.spillover is not None:
        keywords["$SPILLOVER"] = _spillover(header, header.spillover)
    keywords = {name: value for name, value in keywords.items() if value}
    data = _measured(header).astype("<f8").tobytes()
    places = {"$BEGINDATA": f"{0:020d}", "$ENDDATA": f"{0:020d}"}
    first = HEADER_BYTES + len(_text(places | keywords))
    last = first + len(data) - 1
    text = _text(places | {"$BEGINDATA": f"{first:020d}", "$ENDDATA": f"{last:020d}"} | keywords)
    # HEADER has eight digits for an offset; 0 refers to TEXT.
    in_header = (first, last) if last < 10**8 else (0, 0)
    offsets = (HEADER_BYTES, first - 1, *in_header, 0, 0)
    return io.BytesIO(b"".join([b"FCS3.1    ", *(f"{at:8d}".encode() for at in offsets), text, data]))


def _text(keywords: dict[str, str]) -> bytes:
    """Return a TEXT segment."""
    return (MARK + "".join(f"{key}{MARK}{value}{MARK}" for key, value in keywords.items())).encode()


def _measured(header: Header) -> Array:
    """Return all events without amplification, float64 [N, D]; time in seconds, if $TIMESTEP is stated."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        events = read_events(header, exact=True).astype(np.float64)
    step = number_of(header.keywords.get("timestep", ""))
    for k, channel in enumerate(header.channels):
        events[:, k] = channel.linearized(events[:, k])
        if channel.detector.casefold() == "time":
            events[:, k] *= 1.0 if step is None else step
        elif channel.gain and math.isfinite(channel.gain):
            events[:, k] /= channel.gain
    return events


def _spillover(header: Header, spillover: Spillover) -> str:
    """Return the value of $SPILLOVER for a matrix, of all channels that FlowIO takes for fluorescence.

    FlowKit uses no other matrix. Channels that the matrix does not name receive nothing and give nothing.
    """
    names = [one.detector for one in header.channels if one.detector.casefold()[:4] not in NO_DYES]
    found = [numbers_named(name, header.channels) for name in spillover.detectors]
    own = [header.channels[numbers[0]].detector for numbers in found if numbers]
    if len(own) < len(found) or not {*own} <= {*names}:
        return ""  # a name is no channel: the matrix cannot be applied
    places = [names.index(name) for name in own]
    matrix = np.eye(len(names))
    matrix[np.ix_(places, places)] = spillover.matrix
    return ",".join([f"{len(names)}", *names, *(repr(float(value)) for value in matrix.ravel())])
