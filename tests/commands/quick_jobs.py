"""Commands of dpmix in processes of their own, without the map and the figures of `dpmix gate`.

These take longer than all the rest, and other tests look at them.
"""

from dpmix.app.jobs import PROGRAM

COMMAND = (
    "from dpmix.report import embedding, figures; embedding.available = lambda: False; "
    f"figures.write_figures = lambda *_: None; {PROGRAM}"
)
SERVER = f"from dpmix.app import jobs; jobs.PROGRAM = {COMMAND!r}; {PROGRAM}"
"""The server of the page, whose queue runs such commands."""
