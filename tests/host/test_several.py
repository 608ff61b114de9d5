"""The hosts of a run, as one: what becomes of a host that is lost."""

from __future__ import annotations

from unittest.mock import Mock

from paceline.host import between
from paceline.host.several import Other, SeveralHosts


def test_what_training_begins_with_is_not_kept_for_a_host_that_is_lost() -> None:
    head, news = Mock(), Mock()
    hosts = SeveralHosts(head, [Other("node-1", range(2, 4), lambda message: None)], news, lambda: 0.0)
    hosts.begin([0, 1, 2, 3])
    head.lends_beginning.assert_called_once_with("node-1")
    hosts.lost("node-1", "silent for 15.0 s")
    head.begun.assert_called_once_with("node-1")
    assert [call.args[0] for call in news.gone.call_args_list] == [2, 3]


def test_the_end_of_another_hosts_fetch_is_when_the_head_hears_of_it() -> None:
    news = Mock()
    hosts = SeveralHosts(Mock(), [Other("node-1", range(2, 4), lambda message: None)], news, lambda: 7.5)
    hosts.delivered("node-1", between.Fetched("node-0", "version", None, 3, 40, 0.5))
    (fetch,) = news.fetched.call_args.args
    assert (fetch.host, fetch.source, fetch.number, fetch.began, fetch.ended) == ("node-1", "node-0", 3, 7.0, 7.5)


def test_nobody_is_told_that_a_worker_which_has_left_has_a_version() -> None:
    """Its host may say so while it is told that the worker has left."""
    news = Mock()
    hosts = SeveralHosts(Mock(), [Other("node-1", range(2, 4), lambda message: None)], news, lambda: 0.0)
    hosts.delivered("node-1", between.Taken(2, 0))
    hosts.left(2, died=False)
    hosts.delivered("node-1", between.Taken(2, 1))
    assert [call.args[0].version for call in news.happened.call_args_list] == [0]
