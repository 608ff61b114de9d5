"""How long the sentences of a page are: `make prose`. It is a look, not a law.

    python docs/tools/prose.py                      # README and the guides
    python docs/tools/prose.py docs/compare.md      # this page, with its longest sentences

Counted are paragraphs and list items. Left out are headings, tables, code blocks and pictures. Code within a sentence
is one word. The aim is 12 words in the median and 24 at the 90th percentile.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEDIAN, NINETIETH = 12, 24
INTERNALS = ("architecture.md",)

FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"^(#.*|\|.*|!\[.*|<!--.*-->| {4}.*|:::.*|---)$", re.MULTILINE)
ITEM = re.compile(r"^ *([-*]|\d+\.) +", re.MULTILINE)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")
END = re.compile(r"(?<![ (]al)(?<!e\.g)(?<!i\.e)[.!?][)\"”*]*(?=\s|$)")


def sentences(page: str) -> list[str]:
    """Those of a page's paragraphs and list items, in order."""
    text = LEFT_OUT.sub("", FENCED.sub("", page))
    text = ITEM.sub("\n\n", LINK.sub(r"\1", text))
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        whole = CODE.sub("code", " ".join(paragraph.split()))
        found += [one.strip() for one in END.split(whole) if any(sign.isalpha() for sign in one)]
    return found


def words(sentence: str) -> int:
    """How many words it has: what has a letter or a digit in it."""
    return sum(any(sign.isalnum() for sign in word) for word in sentence.split())


def share(counts: Sequence[int], percent: int) -> int:
    """The least of them that so many per cent are no longer than."""
    return sorted(counts)[max(0, math.ceil(len(counts) * percent / 100) - 1)]


def guides() -> list[Path]:
    """README and every page that is not an internal one."""
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "decisions"]
    return [ROOT / "README.md", *(path for path in pages if path.name not in INTERNALS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="default: README and the guides")
    args = parser.parse_args()

    print(f"{'page':36} sentences  median  90 %  longest")
    for page in args.pages or guides():
        found = sentences(page.read_text())
        if not found:
            continue
        counts = [words(one) for one in found]
        median, ninetieth = share(counts, 50), share(counts, 90)
        long = "  <" if median > MEDIAN or ninetieth > NINETIETH else ""
        name = page.resolve().relative_to(ROOT) if page.resolve().is_relative_to(ROOT) else page
        print(f"{name!s:36} {len(found):9} {median:7} {ninetieth:5} {max(counts):8}{long}")
        if args.pages:
            for one in sorted(found, key=words, reverse=True)[:10]:
                if words(one) > NINETIETH:
                    print(f"    {words(one)}: {one}")
    print(f"The aim: {MEDIAN} words in the median, {NINETIETH} at the 90th percentile; < marks pages beyond it.")


if __name__ == "__main__":
    main()
