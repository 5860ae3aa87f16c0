"""Schema versions, one file each in `versions/`; Alembic brings a database from one to the next, never back.

A change of the schema edits `_tables.py`, adds a file whose `down_revision` names the version before it, and raises
`HEAD` in `_migrating.py`. Until a version of q36eval is tagged, `versions/first_schema.py` makes today's tables, so
each later file changes nothing in a new history. With the first tag the tables are written out there.
"""
