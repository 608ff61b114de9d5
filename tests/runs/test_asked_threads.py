"""OMP_NUM_THREADS is the default of `--threads`."""

from __future__ import annotations

import pytest

from paceline.runs.run import asked_threads


@pytest.mark.parametrize(
    ("text", "threads"), [(None, None), ("", None), ("1", 1), ("4", 4), ("2,1", 2), (" 3 , 1", 3), ("1024", 1024)]
)
def test_the_first_number_counts(text: str | None, threads: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_threads({} if text is None else {"OMP_NUM_THREADS": text}) == threads
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["0", "-1", "many", "2.5", "1025", "²", "9" * 5000])
def test_what_is_no_number_of_threads_is_said_in_one_line_and_not_followed(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked_threads({"OMP_NUM_THREADS": text}) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'paceline: OMP_NUM_THREADS is "{text[:40]}", which is no number from 1 to 1024')
