"""A hook of MkDocs: links from a page to files of the repository that are not on the site.

They become links to the repository where CITATION.cff has its address (`repository-code`), else bare names.
"""

import os
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page, config, files) -> str:
    """The page's text with its links to the repository rewritten."""
    docs = Path(config["docs_dir"])
    folder = (docs / page.file.src_uri).parent
    address = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")).get("repository-code", "")

    def written(match: re.Match) -> str:
        words, path, anchor = match[1], match[2], match[3] or ""
        target = Path(os.path.normpath(folder / path))
        if target.is_relative_to(docs) or not target.exists():
            return match[0]
        return f"[{words}]({address}/blob/main/{target.relative_to(ROOT)}{anchor})" if address else words

    return LINK.sub(written, markdown)
