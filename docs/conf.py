"""How Sphinx builds the pages of this folder; `make docs` calls it.

Nothing that the pages show comes from the network: they can be read from a folder, without a server.
"""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import version as version_of
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from latex2mathml.converter import convert
from myst_parser.parsers.sphinx_ import MystParser
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

from dpmix.config.problems import at
from dpmix.config.schema import schema
from dpmix.config.write import reference

project = "dpmix"
author = "the dpmix developers"
version = release = version_of("dpmix-cytometry")

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_click", "sphinx_design"]
smartquotes = False  # they would turn the -- of an option into a dash

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

default_role = "py:obj"  # a name in single backticks in a docstring: a link, where the reference has it
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # docstrings have types, and shapes with them
numpydoc_show_class_members = False  # autodoc does

html_theme = "furo"
html_title = f"dpmix {version}"
html_static_path = ["static", str(files("ziamath") / "fonts")]  # the latter for its STIX Two Math
html_css_files = ["dpmix.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_math_renderer = "mathml"

linkcheck_anchors = False  # many of those on GitHub are made by a script
linkcheck_ignore = [r"http://127\.0\.0\.1"]

log = logging.getLogger(__name__)


class FilesElsewhere(SphinxTransform):
    """Links to Markdown files outside this folder, which are no pages: downloads, as other files are."""

    default_priority = 10

    def apply(self, **_: Any) -> None:
        for link in [*self.document.findall(addnodes.pending_xref)]:
            file = Path(f"{link['reftarget']}.md")
            if link["refdomain"] == "doc" and file.is_absolute() and file.is_file():
                page = Path(self.env.doc2path(self.env.docname))
                target = os.path.relpath(file, page.parent)
                download = addnodes.download_reference("", "", *link.children, reftarget=target)
                link.replace_self(download)


class ConfigReference(SphinxDirective):
    """Every key of the config, section by section, from its schema."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        section = ""
        for name, default, accepts, meaning in reference():
            if name.partition(".")[0] != section:
                section = name.partition(".")[0]
                lines += [f"## {section}", ""]
                lines += [at(schema(), (section,))["description"], ""] if "." in name else []
            shown = "none, it has to be given" if default is None else f"`{default}`"
            lines += [
                f"```{{confval}} {name}",
                f":default: {shown}",
                f":type: {accepts}",
                "",
                meaning,
                "```",
                "",
            ]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


# What browsers would draw badly: a prime, raised by itself, raised once more; the sides of a norm, each as
# high as the text next to it.
MENDED = (
    (
        r"<msup>(<(m[io])\b[^>]*>[^<]*</\2>)<mi>&#x02032;</mi></msup>",
        r"<mrow>\1<mo lspace='0' rspace='0'>&#x02032;</mo></mrow>",
    ),
    (r"<mo>&#x02016;</mo>", r"<mo stretchy='false'>&#x02016;</mo>"),
)


def mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """A formula as MathML, which browsers draw by themselves; what cannot be converted is a warning."""
    text = node.astext()
    try:
        formula = convert(text, display=display)
    except Exception as error:
        log.warning("formula %r: %s", text, error or type(error).__name__, location=node)
        return ""
    if "\\" in formula.partition("<annotation")[0]:
        log.warning("formula %r: has a command that is not known", text, location=node)
    for found, mended in MENDED:
        formula = re.sub(found, mended, formula)
    return formula


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_displayed_math(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(mathml(node, "block"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
        self.add_permalink_ref(node, "Link to this equation")
    self.body.append("</div>")
    raise nodes.SkipNode


class NotebookParser(MystParser):
    """Show notebooks as they were saved: texts, code, printed lines and pictures. Nothing is executed."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the Markdown that says the same."""
        parts = []
        for cell in json.loads(inputstring)["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
            for output in cell.get("outputs", ()):
                if "text" in output:
                    parts.append(f"```text\n{''.join(output['text'])}```")
                else:
                    parts.append(f"![](data:image/png;base64,{''.join(output['data']['image/png'].split())})")
        super().parse("\n\n".join(parts), document)


def lay_out_help(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    r"""Options in the help of a command as code; blocks that it lays out itself (`\b`) behind their line."""
    found: list[str] = []
    for before, line in pairwise(["", *lines]):
        if not line.startswith("| "):
            found.append(re.sub(r"(?<!\S)(--[a-z-]+)", r"``\1``", line))
        elif before.startswith("| "):
            found.append(f"    {line[4:]}")
        else:
            found += [line[2:], "", ".. code-block:: text", ""]
    lines[:] = found


def link_keys(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Where an option stands for a key of the config, a link to it."""
    lines[:] = [re.sub(r"([Kk]ey )([a-z_.]*[a-z_])", r"\1:confval:`\2`", line) for line in lines]


def leave_out(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Remove what the usage has already said."""
    lines.clear()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(FilesElsewhere)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.add_lexer("csv", TextLexer)  # Pygments has none
    app.add_directive("config-reference", ConfigReference)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displayed_math, None))
    app.connect("sphinx-click-process-description", lay_out_help)
    app.connect("sphinx-click-process-options", link_keys)
    app.connect("sphinx-click-process-arguments", leave_out)
    return {"parallel_read_safe": True}
