# SPDX-License-Identifier: Apache-2.0
"""Alembic's environment.

``lakefold db upgrade`` hands over its connection. A developer's ``alembic revision`` or ``alembic check`` uses the
database of ``LAKEFOLD_DATABASE__URL``.
"""

import os

from alembic import context
from sqlalchemy import Connection

from service.control.store.database import Database
from service.control.store.models import Base


def run(connection: Connection) -> None:
    """Run the migrations inside the transaction that is open on ``connection``."""
    # SQLite's DDL is transactional if the driver does not commit by itself, see service.control.store.database.
    context.configure(connection=connection, target_metadata=Base.metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(os.environ["LAKEFOLD_DATABASE__URL"]).write() as own:
        run(own)
