"""A hook of mkdocs: links of docs/ to files of the repository outside of it.

On a site they would lead nowhere, so that they become the path as text; in the repository they stay links."""

import re

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+[^)\s]+\)")


def on_page_markdown(markdown, **_):
    """The page with links out of docs/ as plain text."""
    return _OUTSIDE.sub(r"\1", markdown)
