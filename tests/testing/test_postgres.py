"""The PostgreSQL server of the tests: empty databases, a crash, and data that is there again."""

import psycopg
import pytest

from rigs.postgres import NoPostgres, start_postgres
from tests.conftest import without


def test_each_database_is_empty_and_its_own(postgres_server: object, postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert found == (0,)


def test_what_was_committed_outlives_a_kill() -> None:
    try:
        server = start_postgres()
    except NoPostgres as missing:
        without(str(missing), "NOT TESTED ON POSTGRESQL")
    with server:
        url = server.new_database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (number int)")
            connection.execute("INSERT INTO kept VALUES (1), (2)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=5)
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT sum(number) FROM kept").fetchone() == (3,)
    assert not server.folder.exists()
