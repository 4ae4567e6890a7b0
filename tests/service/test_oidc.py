# SPDX-License-Identifier: Apache-2.0
"""Signing in to the page at a provider of OpenID Connect: a real one, in a process of its own."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import httpx
import pytest
from api_toys import client_of, context_at
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from support import free_port, needs_server
from waiting import wait_for

from lake.model import TableRef
from service.control.config.loader import ConfigError, load_config
from service.control.config.oidc import OidcSettings
from service.problems import ProblemError
from service.server.api.oidc_provider import OidcProvider, PendingSignIn, create_provider
from service.server.web.oidc_sign_in import SIGN_IN_COOKIE

HERE = Path(__file__).parent.parent
INSTALLED = HERE.parent / ".venv" / "oidc"
BACK = "http://127.0.0.1/login/oidc/callback"
SECRET = "a secret of the client alone"
BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def provider_program() -> Path:
    """The provider's program beside its packages, which the first run fetches."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        needs_server("node and npm not found; the provider of OpenID Connect is a package of theirs")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    stale = any(
        not (INSTALLED / name).exists() or (INSTALLED / name).read_text() != (HERE / "oidc" / name).read_text()
        for name in ("package.json", "package-lock.json")
    )
    for path in (HERE / "oidc").iterdir():
        shutil.copy(path, INSTALLED)
    if stale or not (INSTALLED / "node_modules/oidc-provider").is_dir():
        done = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=INSTALLED,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            needs_server(f"npm could not fetch the provider: {done.stderr.strip()[-300:]}")
    return INSTALLED / "provider.mjs"


@contextmanager
def running_provider(program: Path, claims_in: str) -> Iterator[str]:
    port = free_port()
    command = ["node", str(program), str(port), BACK, claims_in]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            issuer = f"http://127.0.0.1:{port}"

            def answers() -> bool:
                with suppress(httpx.HTTPError):
                    return httpx.get(f"{issuer}/.well-known/openid-configuration").is_success
                return False

            wait_for(answers, "the provider", 60)
            yield issuer
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["userinfo", "id_token"])
def issuer(request, provider_program):
    """The address of a provider that puts the groups there."""
    with running_provider(provider_program, request.param) as issuer:
        yield issuer


def settings_of(issuer, **more):
    return OidcSettings(
        issuer=issuer,
        client_id="lakefold",
        client_secret=SECRET,
        redirect_url=BACK,
        scopes=("openid", "email", "groups"),
        write_groups=("platform",),
        read_groups=("analysts",),
        **more,
    )


@pytest.fixture
def context(tmp_path, issuer):
    context = context_at(tmp_path, rate_limit=0)
    context.store.register_table(TableRef(name="sales.orders", format="toy", location="/lake/orders"), "observe")
    yield replace(context, oidc=OidcProvider(settings_of(issuer)))
    context.store.close()


@pytest.fixture
def client(context):
    with client_of(context) as client:
        client.headers.update(BROWSER)
        client.follow_redirects = False
        yield client


def at_the_provider(address, login):
    """What a person does there; the address that the provider sends the browser back to."""
    with httpx.Client() as browser:
        answer = browser.get(address)
        for _ in range(12):
            if answer.is_redirect:
                address = str(answer.url.join(answer.headers["Location"]))
                if address.startswith(BACK):
                    return address
                answer = browser.get(address)
                continue
            assert answer.is_success, answer.text
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)[1]
            form = {"prompt": prompt} | ({"login": login, "password": "any"} if prompt == "login" else {})
            answer = browser.post(answer.url, data=form)
        raise AssertionError("the provider goes round in circles")


def begin(client, following="/"):
    answer = client.get("/login/oidc", params={"next": following})
    assert answer.status_code == 303, answer.text
    return answer.headers["Location"]


def sign_in(client, login, following="/"):
    back = urlsplit(at_the_provider(begin(client, following), login))
    return client.get(f"{back.path}?{back.query}")


def test_a_member_of_a_writing_group_signs_in_writes_and_signs_out(context, client):
    page = client.get("/login?next=/plans").text
    assert "Sign in at 127.0.0.1:" in page
    answer = sign_in(client, "writer", "/tables/sales.orders")
    assert (answer.status_code, "Signed in as writer@example.com" in answer.text) == (200, True)
    assert 'content="0; url=/tables/sales.orders"' in answer.text
    (kept,) = [h for h in answer.headers.get_list("set-cookie") if h.startswith("lakefold_token=lakefold_")]
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in kept.split(";")}
    assert "Sign out (writer@example.com)" in client.get("/").text
    assert client.post("/tables/sales.orders/pause", data={"reason": "tonight"}).status_code == 303
    found = [(entry.actor, entry.door.value, entry.action) for entry in context.store.audit_entries()]
    assert found == [("oidc writer@example.com", "page", "paused"), ("oidc writer@example.com", "page", "signed in")]
    (token,) = context.store.tokens()
    assert (token.scope, token.person, token.in_force) == ("write", "writer@example.com", True)
    assert timedelta(hours=7) < token.expires_at - token.created_at <= timedelta(hours=8)
    kept_elsewhere = client.cookies["lakefold_token"]
    assert client.post("/logout").status_code == 303
    assert not context.store.tokens()[0].in_force, "a copy of the cookie is of no use either"
    assert context.tokens.find(kept_elsewhere) is None or time.sleep(3.5) or context.tokens.find(kept_elsewhere) is None


def test_a_member_of_a_reading_group_reads_and_writes_nothing(context, client):
    assert sign_in(client, "reader").status_code == 200
    assert "Sign out (reader@example.com)" in client.get("/").text
    assert client.post("/tables/sales.orders/pause").status_code == 403
    assert not context.store.table_state("sales.orders").paused


def test_a_user_without_a_configured_group_can_not_sign_in(context, client):
    answer = sign_in(client, "stranger")
    assert (answer.status_code, "stranger@example.com is in no group" in answer.text) == (403, True)
    assert context.store.tokens() == []


def test_an_unverified_address_is_not_used_as_a_persons_name(context, client):
    assert sign_in(client, "unproved").status_code == 200
    assert [token.person for token in context.store.tokens()] == ["unproved"]


def test_each_sign_in_has_another_state_nonce_and_challenge(client):
    asked = [parse_qs(urlsplit(begin(client)).query) for _ in range(2)]
    for name in ("state", "nonce", "code_challenge"):
        assert len({query[name][0] for query in asked}) == 2
    assert {query["code_challenge_method"][0] for query in asked} == {"S256"}


def changed(client, **values):
    """The sign-in that the browser keeps, with something else in it."""
    kept = json.loads(unquote(client.cookies[SIGN_IN_COOKIE]))
    client.cookies.set(
        SIGN_IN_COOKIE, quote(json.dumps(kept | values), safe=""), domain="127.0.0.1", path="/login/oidc"
    )


@pytest.mark.parametrize(
    ("what", "status"),
    [("state", 400), ("nonce", 403), ("verifier", 403)],
)
def test_a_sign_in_with_another_state_nonce_or_verifier_is_refused(context, client, what, status):
    back = urlsplit(at_the_provider(begin(client), "writer"))
    client.cookies.jar.clear_session_cookies()
    changed(client, **{what: "x" * 64})
    answer = client.get(f"{back.path}?{back.query}")
    assert answer.status_code == status, answer.text
    assert context.store.tokens() == []
    assert "lakefold_token" not in client.cookies


def test_a_code_is_valid_once_and_only_in_the_browser_that_requested_it(context, client):
    back = urlsplit(at_the_provider(begin(client), "writer"))
    kept = client.cookies[SIGN_IN_COOKIE]
    with client_of(context) as another:
        assert another.get(f"{back.path}?{back.query}", headers=BROWSER).status_code == 400
    assert client.get(f"{back.path}?{back.query}").status_code == 200
    client.cookies.set(SIGN_IN_COOKIE, kept, domain="127.0.0.1", path="/login/oidc")
    assert client.get(f"{back.path}?{back.query}").status_code == 403
    assert len(context.store.tokens()) == 1


def test_no_person_is_sent_to_another_site_after_signing_in(client):
    assert 'content="0; url=/"' in sign_in(client, "reader", "https://evil.example/").text


def test_a_refusal_of_the_provider_is_quoted(client):
    state = parse_qs(urlsplit(begin(client)).query)["state"][0]
    query = {"error": "access_denied", "error_description": "not <today>", "state": state}
    answer = client.get("/login/oidc/callback", params=query)
    assert (answer.status_code, "not &lt;today&gt;" in answer.text) == (403, True)


def test_a_provider_that_does_not_answer_is_named(tmp_path):
    context = context_at(tmp_path, rate_limit=0)
    with client_of(replace(context, oidc=OidcProvider(settings_of(f"http://127.0.0.1:{free_port()}")))) as client:
        answer = client.get("/login/oidc", headers=BROWSER)
        assert (answer.status_code, "can&#39;t sign in at 127.0.0.1:" in answer.text) == (503, True)
    context.store.close()


OF_CLIENT = OctKey.import_key(SECRET)


@cache
def rsa_key(owner):
    """The owner's key; to make one takes up to a second."""
    return RSAKey.generate_key(2048)


def id_token(key=None, alg="RS256", **claims):
    now = int(time.time())
    known = {"iss": "https://id.example", "aud": "lakefold", "sub": "1", "iat": now, "exp": now + 60, "nonce": "n"}
    said = {name: value for name, value in (known | claims).items() if value is not None}
    return {"id_token": jwt.encode({"alg": alg}, said, key or rsa_key("provider"), algorithms=[alg])}


@pytest.mark.parametrize(
    "token",
    [
        partial(id_token, iss="https://evil.example"),
        partial(id_token, aud="another"),
        partial(id_token, aud=["lakefold", "x"], azp="x"),
        lambda: id_token(exp=int(time.time()) - 120),
        partial(id_token, exp=None),
        partial(id_token, nonce="m"),
        partial(id_token, nonce=None),
        partial(id_token, sub=None),
        lambda: id_token(rsa_key("another")),
        partial(id_token, OF_CLIENT, "HS256"),
        lambda: {"id_token": "no.token.at-all"},
        dict,
    ],
    ids=["issuer", "audience", "party", "expired", "endless", "nonce", "no nonce", "nobody", "key", "alg", "torn", ""],
)
def test_an_id_token_that_does_not_hold_is_refused(token):
    provider = OidcProvider(settings_of("https://id.example"))
    keys = KeySet([rsa_key("provider")]).as_dict(private=False)
    assert provider.verify_id_token(id_token(), "n", keys)["sub"] == "1"
    with pytest.raises(ProblemError, match="is not valid"):
        provider.verify_id_token(token(), "n", keys)


OIDC = """
[oidc]
issuer = "https://id.example"
client_id = "lakefold"
client_secret = "x"
redirect_url = "https://lakefold.example/login/oidc/callback"
read_groups = ["*"]
"""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('issuer = "http://id.example"', "https://"),
        ('redirect_url = "https://lakefold.example/"', "/login/oidc/callback"),
        ("read_groups = []", "no person could sign in"),
        ('client_secret = ""', "LAKEFOLD_OIDC__CLIENT_SECRET"),
        ('scopes = ["email"]\nclient_id = "x"', "openid"),
    ],
)
def test_settings_that_would_admit_no_person_or_strangers_are_refused(tmp_path, wrong, right):
    file = tmp_path / "lakefold.toml"
    file.write_text(OIDC)
    assert create_provider(load_config(file)).display_name == "id.example"
    key = wrong.rpartition("\n")[2].partition(" = ")[0]
    file.write_text(re.sub(rf"^{key} = .*$", wrong, OIDC, flags=re.MULTILINE))
    with pytest.raises(ConfigError, match=re.escape(right)):
        load_config(file)


def test_without_a_provider_the_page_offers_none(tmp_path):
    context = context_at(tmp_path)
    with client_of(context) as client:
        assert "/login/oidc" not in client.get("/login").text
        assert client.get("/login/oidc", headers=BROWSER).status_code == 404
    context.store.close()


def test_a_provider_that_calls_itself_otherwise_is_not_believed(issuer):
    provider = OidcProvider(settings_of(issuer.replace("127.0.0.1", "localhost")))
    with pytest.raises(ProblemError, match=r"its issuer is 'http://127\.0\.0\.1"):
        provider.authorization_url(PendingSignIn.new("/"))
