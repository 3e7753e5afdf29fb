"""SQL statements that run on a caller's own connection. Each takes one JSON text and returns one JSON text.

So every driver can run them, however it treats arrays and types. `{document}` stands for the driver's placeholder of
the parameter.
"""

from __future__ import annotations

from mainspring.backends.postgres.rows import FRESH_COLUMNS, INSERT_FRESH, run_columns

_DOCUMENT = "d AS MATERIALIZED (SELECT CAST(CAST({document} AS text) AS json) AS j)"


def _rows(key: str, columns: dict[str, str], alias: str) -> str:
    """Return SQL that turns a list of objects in the JSON text into rows, with a column `ord` that numbers them.

    `key`: the name of the list in the JSON text. `columns`: the SQL type of each column by its name. `alias`: the rows'
    name in the rest of the statement.
    """
    kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return (
        f"d CROSS JOIN LATERAL ROWS FROM (json_to_recordset(d.j -> '{key}') AS ({kinds})) "
        f"WITH ORDINALITY AS {alias}({', '.join(columns)}, ord)"
    )


#: Returns a text that identifies the database and the schema: the database's object id, and when the schema was
#: created, to the microsecond.
READ_IDENTITY = """
SELECT (SELECT b.oid::text FROM pg_database b WHERE b.datname = current_database()) || '@'
       || coalesce((SELECT extract(epoch FROM m.began_at)::text FROM §migration m WHERE m.number = 1), '')
"""

#: Columns of the `RunScheduled` event that the run's row does not have: its actor, change and data.
_EVENT = {"event_actor": "text", "event_change": "text", "event_data": "text"}
RUN_COLUMNS = {**FRESH_COLUMNS, **_EVENT}
_BODY = {"id": "text", "data": "text"}

#: Parameter: an object {now, home, channel, runs, bodies}. Inserts the runs with their payloads and events, but skips
#: runs that exist. Writes nothing unless `home` is the identity of the schema to which the connection leads. Returns an
#: object {home, database, version, ids}: whether that was so, the database's name, the schema's version, and the ids of
#: the inserted runs. Other instances are notified when the caller commits.
INSERT_RUNS_IF_AT_HOME = f"""
WITH {_DOCUMENT},
t AS MATERIALIZED (
    SELECT coalesce((d.j ->> 'now')::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) AS now
    FROM d),
h AS MATERIALIZED (SELECT ({READ_IDENTITY}) = d.j ->> 'home' AS home FROM d),
i AS MATERIALIZED (SELECT i.* FROM h, {_rows("runs", RUN_COLUMNS, "i")} WHERE h.home),
r AS ({INSERT_FRESH} RETURNING id, ns, schedule_id, body),
b AS (
    INSERT INTO §body (id, data) SELECT p.id, p.data FROM {_rows("bodies", _BODY, "p")}
    WHERE p.id IN (SELECT r.body FROM r) ORDER BY p.ord ON CONFLICT DO NOTHING),
e AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, actor, change, data)
    SELECT t.now, r.ns, r.schedule_id, r.id, 1, 'RunScheduled', 1, i.event_actor, i.event_change, i.event_data
    FROM t, i JOIN r ON r.id = i.id ORDER BY i.ord)
SELECT json_build_object(
    'home', h.home, 'database', current_database(), 'ids', (SELECT json_agg(r.id) FROM r),
    'version', (SELECT max(m.number) FROM §migration m WHERE m.finished_at IS NOT NULL),
    'told', CASE WHEN EXISTS (SELECT 1 FROM r) THEN pg_notify(d.j ->> 'channel', '')::text END)::text AS answer
FROM d, h
"""  # noqa: S608 - column names, no input

_KEY = {"place": "integer", "ns": "text", "unique_key": "text"}
#: Parameter: an object {keys}, in which each key has the index of its change, `place`. Returns the open runs that hold
#: the keys: a list of lists, each of which has `place` and then the columns of the run.
FIND_KEY_HOLDERS = f"""
WITH {_DOCUMENT}
SELECT coalesce(json_agg(json_build_array(k.place, {run_columns("r")})), '[]')::text AS answer
FROM {_rows("keys", _KEY, "k")}
JOIN §run r ON r.ns = k.ns AND r.unique_key = k.unique_key AND r.unique_key IS NOT NULL AND r.ended_at IS NULL
"""  # noqa: S608
