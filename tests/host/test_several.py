"""The hosts of a run, as one: what becomes of a host that is lost."""

from __future__ import annotations

from unittest.mock import Mock

from paceline.host.several import Other, SeveralHosts


def test_what_training_begins_with_is_not_kept_for_a_host_that_is_lost() -> None:
    head, news = Mock(), Mock()
    hosts = SeveralHosts(head, [Other("node-1", range(2, 4), lambda message: None)], news, lambda: 0.0)
    hosts.begin([0, 1, 2, 3])
    head.lends_beginning.assert_called_once_with("node-1")
    hosts.lost("node-1", "silent for 15.0 s")
    head.begun.assert_called_once_with("node-1")
    assert [call.args[0] for call in news.gone.call_args_list] == [2, 3]
