# SPDX-License-Identifier: Apache-2.0
"""What the last search for tables could not read, for the processes that do not search."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from service.store.base import StorePart, storable_text
from service.store.clock import datetime_from_ms, db_now
from service.store.models import SourceProblemRow
from service.store.views import SourceProblem

#: a file system that became unreadable has a problem for each of its directories
_MAX_PROBLEMS = 100


class SourceProblems(StorePart):
    """Problems of sources, in the order in which the search met them."""

    def record_source_problems(self, problems: Sequence[str]) -> None:
        """Put ``problems``, a line each, in the place of those of the search before. One that stays keeps its time.

        Of more than a hundred the last line says how many there are.
        """
        lines = [storable_text(problem) for problem in problems[:_MAX_PROBLEMS]]
        if (more := len(problems) - len(lines)) > 0:
            lines.append(f"{more} more parts of sources could not be searched; the log names each")
        with self._database.write() as connection:
            query = select(SourceProblemRow.problem, SourceProblemRow.since_ms).order_by(SourceProblemRow.position)
            before = {row.problem: row.since_ms for row in connection.execute(query)}
            if list(before) == lines:
                return
            connection.execute(delete(SourceProblemRow))
            for position, line in enumerate(dict.fromkeys(lines)):
                since = before.get(line, db_now())
                row = insert(SourceProblemRow).values(position=position, problem=line, since_ms=since)
                connection.execute(row)

    def source_problems(self) -> list[SourceProblem]:
        """What the last search could not read; nothing for those who see some tables only."""
        if not self._table_scope.is_unrestricted:
            return []
        query = select(SourceProblemRow.__table__).order_by(SourceProblemRow.position)
        with self._database.read() as connection:
            return [
                SourceProblem(problem=row.problem, since=datetime_from_ms(row.since_ms))
                for row in connection.execute(query)
            ]
