"""How sentences are counted for `make prose`."""

from __future__ import annotations

import pytest
from prose import sentences, share, words

PAGE = """# A heading. With two sentences.

One [link to a page](a.md#b. c) and `code with. words`. Is it two? Yes,
e.g. over two lines, as Ho et al. say; 0.5 is no end.

- An item without a full stop
- Another one. Of two.

| a table | is. left out |

```bash
not a sentence. not this.
```

![A picture. Left out.](a.svg)

**1.** Numbers alone are none!
"""


def test_sentences_are_those_of_paragraphs_and_items() -> None:
    assert [words(one) for one in sentences(PAGE)] == [7, 3, 14, 6, 2, 2, 4]


def test_code_is_one_word_and_signs_are_none() -> None:
    assert words("a – b: code, (d) & e") == 5


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (90, 9), (100, 10), (1, 1)])
def test_a_percentile_is_the_least_number_that_so_many_do_not_pass(percent: int, expected: int) -> None:
    assert share([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected
