# SPDX-License-Identifier: Apache-2.0
"""Requests and their answers in the database, on SQLite and PostgreSQL."""

import pytest

from service.control.store import IdempotencyMismatch, NotFound, Store

pytestmark = pytest.mark.paired("database_url")


def test_a_request_is_answered_once(store: Store) -> None:
    request_id = store.add_request(
        "t", partitions=["b", "a", "b"], overrides={"small_file_limit": "1MiB"}, dry_run=True, actor="ada"
    )
    second = store.add_request("t", actor="bob")
    request = store.request(request_id)
    assert (request.table, request.partitions, request.dry_run, request.actor) == ("t", ("a", "b"), True, "ada")
    assert request.overrides == {"small_file_limit": "1MiB"}
    assert (request.answer, request.plan_ids) == (None, ())
    assert [r.request_id for r in store.open_requests()] == [request_id, second]
    store.answer_request(request_id, plan_ids=["p1"], answer={"outcome": "planned"})
    store.answer_request(request_id, plan_ids=[], answer={"outcome": "late"})
    request = store.request(request_id)
    assert (request.plan_ids, request.answer) == (("p1",), {"outcome": "planned"})
    assert [r.request_id for r in store.open_requests()] == [second]
    assert store.request(second).partitions is None
    for use in (lambda: store.request("nope"), lambda: store.answer_request("nope", answer={})):
        with pytest.raises(NotFound, match="no request"):
            use()


def test_an_idempotency_key_gives_the_first_request_and_refuses_another_body(store: Store) -> None:
    first = store.add_request("t", partitions=["a"], overrides={"x": (1, 2)}, idempotency_key="k", actor="ada")
    again = store.add_request("t", partitions=["a"], overrides={"x": (1, 2)}, idempotency_key="k", actor="ada")
    assert again == first
    assert store.request(first).idempotency_key == "k"
    with pytest.raises(IdempotencyMismatch, match="'k' was used for another request"):
        store.add_request("t", partitions=["b"], idempotency_key="k", actor="ada")
    assert store.add_request("t", actor="ada") != store.add_request("t", actor="ada"), "no key, no memory"


def test_an_idempotency_key_is_its_actors_own(store: Store) -> None:
    first = store.add_request("t", partitions=["a"], idempotency_key="k", actor="token ada")
    assert store.has_request("k", "token ada")
    assert not store.has_request("k", "token bob")
    other = store.add_request("t", partitions=["b"], idempotency_key="k", actor="token bob")
    assert other != first
    assert [store.request(each).partitions for each in (first, other)] == [("a",), ("b",)]
