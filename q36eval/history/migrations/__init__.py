"""Schema versions, one file each in `versions/`; Alembic brings a database from one to the next, never back.

Until a version of q36eval is tagged there is one, the first schema, and it is changed in place: edit `_tables.py`, then
raise the number in `versions/first_schema.py` and `HEAD` in `_migrating.py`. A history of an earlier number is refused
with a sentence and left as it is; nothing carries it over.

With the first tag `versions/first_schema.py` is frozen: its tables are written out there. From then on every change is
a file of its own, whose `down_revision` names the version before it.
"""
