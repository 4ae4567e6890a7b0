# SPDX-License-Identifier: Apache-2.0
"""What budgets count."""

from sqlalchemy import BigInteger, CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.store.models.columns import Base, RowId


class ChargeRow(Base):
    """What an attempt at a plan was charged at a moment: its prediction when it began, at its end what went beyond."""

    __tablename__ = "charge"
    __table_args__ = (
        CheckConstraint("bytes >= 0 AND cpu_ms >= 0", name="not_negative"),
        Index(None, "at_ms"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(String)
    table_name: Mapped[str] = mapped_column(String)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    cpu_ms: Mapped[int] = mapped_column(BigInteger)
