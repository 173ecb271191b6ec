"""The site, of `make docs`: README.md and docs/*.md as they are, and the package's docstrings."""

import shutil
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

project = "convtbw"
author = "the convtbw authors"
version = release = installed("convtbw")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Sources lie where GitHub shows them, so that one link serves both.
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "examples/README.md"]
exclude_patterns = ["build", ".venv"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 3
nitpicky = True  # of references in docstrings; those to torch have no target here
nitpick_ignore_regex = [(r"py:.*", r"(torch\.|collections\.|Tensor|Module).*")]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False

highlight_language = "none"  # of blocks that name none

html_theme = "furo"
html_title = f"convtbw {release}"
html_show_copyright = False

# README.md is the first page; GitHub needs no table of contents in it.
CONTENTS = """
```{toctree}
:hidden:
:caption: Guides
docs/functional
docs/enable
docs/accumulation
docs/scaling
docs/cpp
examples/README
```
```{toctree}
:hidden:
:caption: Reference
docs/api/torch_ops
docs/api/backends
docs/api/functional
docs/api/nn
docs/api/distributed
```
```{toctree}
:hidden:
:caption: Inside
docs/performance
docs/design
CONTRIBUTING
CHANGELOG
```
"""


def setup(app: Sphinx) -> None:
    def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
        if name == root_doc:
            source[0] += CONTENTS

    def name_the_first_page(app: Sphinx, failed: Exception | None) -> None:
        if not failed:
            shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))

    app.connect("source-read", add_contents)
    app.connect("build-finished", name_the_first_page)
