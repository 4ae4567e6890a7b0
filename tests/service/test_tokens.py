# SPDX-License-Identifier: Apache-2.0
"""Tokens of the HTTP API: made once, kept as a hash, replaced without a restart."""

import json
from datetime import timedelta

import pytest
from api_toys import add_token, client_of, context_at

from service.cli.main import run
from service.control.store import Bearer, NotFound, Store, WrongState
from service.server.api.token_cache import new_token, token_digest


@pytest.fixture
def store(database_url):
    store = Store(database_url)
    yield store
    store.close()


@pytest.fixture
def lakefold(tmp_path, capsys):
    """Runs a command on a database of its own: exit code, stdout, stderr."""
    context = context_at(tmp_path)
    context.store.close()

    def call(*arguments):
        code = run([*arguments, "--config", str(tmp_path / "lakefold.toml")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_tokens_in_force_are_found_by_their_hash_and_nothing_else_of_them_is_kept(store):
    token = add_token(store, "write", "airflow")
    assert store.tokens_in_force() == {token_digest(token): Bearer(name="airflow", scope="write")}
    (kept,) = store.tokens()
    assert (kept.name, kept.scope, kept.in_force, kept.created_by) == ("airflow", "write", True, "test")
    assert (kept.expires_at, kept.revoked_at, kept.last_used_at) == (None, None, None)
    assert token not in repr(kept)


def test_a_token_ends_by_revocation_or_at_its_time(store):
    add_token(store, "read", "long", expires_in=timedelta(days=90))
    add_token(store, "read", "short", expires_in=timedelta(milliseconds=1))
    add_token(store, "read", "revoked")
    store.revoke_token("revoked", actor="test")
    first = next(token.revoked_at for token in store.tokens() if token.name == "revoked")
    store.revoke_token("revoked", actor="test")
    assert {bearer.name for bearer in store.tokens_in_force().values()} == {"long"}
    found = {token.name: token for token in store.tokens()}
    assert [found[name].in_force for name in ("long", "revoked", "short")] == [True, False, False]
    assert found["long"].expires_at - found["long"].created_at == timedelta(days=90)
    assert found["revoked"].revoked_at == first, "a second revocation keeps the time of the first"
    with pytest.raises(NotFound, match="no token 'other'"):
        store.revoke_token("other", actor="test")


def test_a_name_is_taken_while_its_token_is_in_force_and_free_again_afterwards(store):
    first = add_token(store, "read", "ci")
    with pytest.raises(
        WrongState, match="a token 'ci' is in force; choose another name, or: lakefold tokens revoke ci"
    ):
        add_token(store, "write", "ci")
    store.revoke_token("ci", actor="test")
    second = add_token(store, "write", "ci")
    assert store.tokens_in_force() == {token_digest(second): Bearer(name="ci", scope="write")}
    assert first != second


def test_the_last_use_is_written_down(store):
    add_token(store, "read", "used")
    add_token(store, "read", "idle")
    store.record_token_use({"used"})
    found = {token.name: token.last_used_at for token in store.tokens()}
    assert found["idle"] is None
    assert found["used"] is not None


def test_tokens_are_long_and_of_their_own_kind():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(token.startswith("lakefold_") and len(token) == len("lakefold_") + 43 for token in made)


def test_a_token_is_printed_alone_on_stdout_and_works(lakefold, tmp_path):
    code, out, err = lakefold("tokens", "add", "ci", "--scope", "write", "--expires", "90d")
    assert (code, out.count("\n")) == (0, 1)
    assert "not shown again" in err
    context = context_at(tmp_path)
    with client_of(context, out.strip()) as client:
        assert client.post("/v1/pause").status_code == 200
    context.store.close()
    code, listed, _ = lakefold("tokens", "list", "--json")
    (entry,) = [json.loads(line) for line in listed.splitlines()]
    assert (entry["name"], entry["scope"], entry["in_force"]) == ("ci", "write", True)
    assert out.strip() not in listed
    code, text, _ = lakefold("tokens", "list")
    assert text.splitlines()[1].split()[:4] == ["ci", "write", "all", "until"]
    assert lakefold("tokens", "revoke", "ci")[:2] == (0, "ci: revoked\n")
    assert lakefold("tokens", "list")[1].splitlines()[1].split()[:4] == ["ci", "write", "all", "revoked"]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("add", "ci", "--scope", "admin"), 2, "--scope 'admin' is not one of read, write"),
        (("add", "ci"), 2, "Missing option '--scope'"),
        (("add", "ci", "--scope", "read", "--expires", "soon"), 2, "--expires: 'soon' is not a duration"),
        (("add", "ci", "--scope", "read", "--expires", "0s"), 2, "--expires must be above zero"),
        (("add", " ", "--scope", "read"), 2, "the token name ' ' is empty or has invisible characters"),
        (("add", "a\nb", "--scope", "read"), 2, "has invisible characters"),
        (("revoke", "ci"), 10, "no token 'ci'"),
    ],
)
def test_a_mistake_is_one_line(lakefold, arguments, code, line):
    result, out, err = lakefold("tokens", *arguments)
    assert (result, out) == (code, "")
    assert line in err
    assert "Traceback" not in err


def test_tokens_are_managed_only_where_the_database_is(lakefold, monkeypatch):
    monkeypatch.setenv("LAKEFOLD_URL", "http://127.0.0.1:1")
    code, _, err = lakefold("tokens", "list")
    assert code == 2
    assert "does not work over HTTP" in err
