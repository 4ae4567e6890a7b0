# SPDX-License-Identifier: Apache-2.0
"""S3 without a JVM: the settings of Spark's S3A client, for ``pyarrow.fs`` and for Rust's object_store.

Each process passes Spark's settings to ``configure``; readers of tables request access to the bucket they need.
Without keys each client finds credentials itself: environment, web identity, container, instance.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from lake.errors import Rejected, Transient

if TYPE_CHECKING:
    from obstore.store import S3Store
    from pyarrow import fs as pafs

PREFIX = "spark.hadoop.fs.s3a."
"""The prefix of S3A's settings among Spark's."""

_PROVIDERS = "aws.credentials.provider"
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
_KEYS = frozenset({"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"})
#: providers that are parts of the default chain of pyarrow and object_store
_CHAIN = frozenset(
    {
        "DefaultAWSCredentialsProviderChain",
        "EnvironmentVariableCredentialsProvider",
        "WebIdentityTokenCredentialsProvider",
        "EC2ContainerCredentialsProviderWrapper",
        "ContainerCredentialsProvider",
        "IAMInstanceCredentialsProvider",
        "InstanceProfileCredentialsProvider",
    }
)
_AWS = re.compile(r"s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(\.cn)?")
_DEFAULT_REGION = "us-east-1"
#: how long one conditional write may take, retries included
_REQUEST_TIMEOUT = timedelta(seconds=15)

_settings: Mapping[str, str] = {}


def configure(spark_settings: Mapping[str, str]) -> None:
    """Set S3A's settings among Spark's for this process; they replace those of an earlier call."""
    global _settings
    _settings = {
        key.removeprefix(PREFIX): value.strip() for key, value in spark_settings.items() if key.startswith(PREFIX)
    }


def current_configuration() -> dict[str, str]:
    """Return the settings for ``configure`` in another process."""
    return {PREFIX + key: value for key, value in _settings.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """How one bucket is accessed. ``region`` and ``endpoint`` (host and port) are null for AWS's own.

    ``virtual_hosts``: the bucket is a part of the endpoint's host name, and not of the path.
    """

    region: str | None = None
    endpoint: str | None = None
    scheme: str = "https"
    virtual_hosts: bool = True
    anonymous: bool = False
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bucket: str, settings: Mapping[str, str]) -> "S3Access":
        """Return the access to ``bucket`` by S3A's settings, without prefix. Raises Rejected for unsupported ones."""

        def get(key: str) -> str | None:
            return settings.get(key) or None

        if own := next((key for key in settings if key.startswith(f"bucket.{bucket}.")), None):
            raise Rejected(
                f"s3://{bucket}: {PREFIX}{own} would apply to Spark only: other readers have one store per process; "
                f"set {PREFIX}{own.removeprefix(f'bucket.{bucket}.')} for all buckets, and serve other stores with "
                "another process"
            )

        scheme, endpoint, region = _endpoint(get("endpoint"), get("connection.ssl.enabled"))
        anonymous = _check_providers(bucket, get(_PROVIDERS))
        keys = (get("access.key"), get("secret.key"))
        if any(keys) and not all(keys):
            missing = "access.key" if keys[0] is None else "secret.key"
            raise Rejected(
                f"s3://{bucket}: access.key and secret.key go together; set {PREFIX}{missing} in [spark], or neither"
            )
        return cls(
            region=get("endpoint.region") or region,
            endpoint=endpoint,
            scheme=scheme,
            virtual_hosts=(get("path.style.access") or "false").lower() != "true",
            anonymous=anonymous,
            access_key=None if anonymous else keys[0],
            secret_key=None if anonymous else keys[1],
            session_token=None if anonymous else get("session.token"),
        )

    def filesystem(self, bucket: str) -> "pafs.S3FileSystem":
        """Return the file system. Raises Rejected if the bucket does not exist, Transient if its region is unknown."""
        return _filesystem(self, self._region(bucket))

    def object_store_options(self, bucket: str) -> dict[str, str]:
        """Return the access as storage options of Rust's object_store."""
        # For a store that is not AWS's, object_store requires the whole host, the bucket included.
        host = f"{bucket}.{self.endpoint}" if self.virtual_hosts else self.endpoint
        return {"aws_region": self._region(bucket)} | self._object_store_options(host)

    def conditional_store(self, bucket: str) -> "S3Store":
        """Return the bucket for conditional writes, which pyarrow lacks; it retries for seconds, not for minutes."""
        from obstore.store import S3Store

        options = {key.removeprefix("aws_"): value for key, value in self.object_store_options(bucket).items()}
        allow_http = options.pop("allow_http", "false") == "true"
        return S3Store(
            bucket,
            config=options,
            client_options={"allow_http": allow_http, "timeout": _REQUEST_TIMEOUT},
            retry_config={"max_retries": 3, "retry_timeout": _REQUEST_TIMEOUT},
        )

    def environment(self) -> dict[str, str]:
        """Return the access as environment variables, which have one endpoint for all buckets."""
        options = self._object_store_options(self.endpoint)
        if self.endpoint is not None:
            # The bucket is not known here, so it can't be a part of the host.
            options["aws_virtual_hosted_style_request"] = "false"
        if self.region is not None or self.endpoint is not None:
            options["aws_region"] = self.region or _DEFAULT_REGION
        return {key.upper(): value for key, value in options.items()}

    def _object_store_options(self, host: str | None) -> dict[str, str]:
        options = {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_session_token": self.session_token,
            "aws_endpoint": f"{self.scheme}://{host}" if self.endpoint else None,
            "aws_virtual_hosted_style_request": str(self.virtual_hosts).lower(),
            "aws_allow_http": "true" if self.scheme == "http" else None,
            "aws_skip_signature": "true" if self.anonymous else None,
        }
        return {key: value for key, value in options.items() if value is not None}

    def _region(self, bucket: str) -> str:
        known = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return known or (_DEFAULT_REGION if self.endpoint else _region_of(bucket))


def access(bucket: str) -> S3Access:
    """Return the access to ``bucket`` by this process's settings. Raises Rejected for unsupported settings."""
    return S3Access.of(bucket, _settings)


def _endpoint(given: str | None, ssl: str | None) -> tuple[str, str | None, str | None]:
    """Return scheme, endpoint (host and port; None for AWS's own) and the region in the name of AWS's own endpoint."""
    scheme = "http" if (ssl or "true").lower() == "false" else "https"
    if given is None:
        return scheme, None, None
    if "://" in given:
        scheme, _, given = given.partition("://")
    host = given.rstrip("/")
    aws = _AWS.fullmatch(host)
    return (scheme, None, aws["region"]) if aws else (scheme, host, None)


def _check_providers(bucket: str, given: str | None) -> bool:
    """True if requests are not signed. Raises Rejected for credentials that only a JVM can find."""
    names = [name.strip().rpartition(".")[2] for name in (given or "").split(",") if name.strip()]
    for name in names:
        if name not in _KEYS | _CHAIN | {_ANONYMOUS}:
            raise Rejected(
                f"s3://{bucket}: {PREFIX}{_PROVIDERS} = {name} is known to Spark only, and lakefold reads tables "
                f"without a JVM too; leave it unset for AWS's default chain, or set {PREFIX}access.key and secret.key"
            )
    return names == [_ANONYMOUS]


@cache
def _filesystem(access: S3Access, region: str) -> "pafs.S3FileSystem":
    from pyarrow import fs as pafs

    return pafs.S3FileSystem(
        access_key=access.access_key,
        secret_key=access.secret_key,
        session_token=access.session_token,
        anonymous=access.anonymous,
        region=region,
        endpoint_override=access.endpoint,
        scheme=access.scheme,
        force_virtual_addressing=access.endpoint is not None and access.virtual_hosts,
    )


@cache
def _region_of(bucket: str) -> str:
    from pyarrow import fs as pafs

    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError as error:
        reason = str(error).splitlines()[0]
        if "not found" in reason:
            raise Rejected(
                f"s3://{bucket}: AWS has no such bucket; correct the location, or set {PREFIX}endpoint "
                "if the store is not AWS's"
            ) from error
        raise Transient(
            f"s3://{bucket}: its region can't be requested ({reason}); or set {PREFIX}endpoint.region"
        ) from error
