"""A CSV file in, the mean of each column out.

$ pytriton-daemon serve csv_upload.py
$ pytriton-daemon call means table=@table.csv
$ curl 127.0.0.1:8000/means -F table=@table.csv
"""

import csv
import io
from statistics import fmean

from pytriton import HTTPError, UploadFile


def means(table: UploadFile) -> dict[str, float]:
    """Return the mean of each column of a table of numbers, whose first line names the columns."""
    rows = list(csv.DictReader(io.TextIOWrapper(table.file, "utf-8")))
    if not rows:
        raise HTTPError(422, f"{table.filename} has {table.size} bytes, but no rows")
    try:
        return {name: fmean(float(row[name]) for row in rows) for name in rows[0]}
    except (TypeError, ValueError) as error:
        raise HTTPError(422, f"{table.filename} is not a table of numbers: {error}") from error
