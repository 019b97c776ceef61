"""Writes tables with Python's csv module, and random texts, with the rows that the module itself reads from them.

  make_csv.py
"""

import csv
import io
import json
import random
from pathlib import Path

HERE = Path(__file__).parent
TEXTS = ["", "a", "b c", "ü", '"', '""', ",", "\t", "\n", "\r\n", "\r", " x ", "'", "007", "line\nbreak", 'say "hi", please', "🙂", "\ufeff"]


def read(text, delimiter):
    """Rows of the text, and whether it ends within quotes."""
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    try:
        list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
        is_open = False
    except csv.Error as error:
        is_open = ends_within_quotes(text, delimiter)
        assert is_open or "unexpected end" not in str(error), (text, error)
    return rows, is_open


def ends_within_quotes(text, delimiter):
    """A further row is part of the last one if that is open."""
    whole = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    more = list(csv.reader(io.StringIO(text + "\nnext", newline=""), delimiter=delimiter))
    return more[-1] != ["next"] or len(more) <= len([row for row in whole if row])


def written(random, delimiter):
    """A table as Python writes it."""
    text = io.StringIO(newline="")
    end = random.choice(["\n", "\r\n", "\r"])
    quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    columns = random.randint(1, 4)
    writer.writerow([f"column {number}" for number in range(columns)])
    for _ in range(random.randint(0, 5)):
        writer.writerow([random.choice(TEXTS) for _ in range(columns)])
        if random.random() < 0.1:
            text.write(end)
    text = text.getvalue()
    return text.removesuffix(end) if random.random() < 0.5 else text


def main():
    chance = random.Random(7)
    cases = []
    for number in range(600):
        delimiter = "," if number % 4 else "\t"
        if number % 2:
            text = written(chance, delimiter)
        else:
            header = delimiter.join("ab")
            text = header + "\n" + "".join(chance.choice(f'x"{delimiter}\r\n é') for _ in range(chance.randint(0, 14)))
        rows, is_open = read(text, delimiter)
        mark = "\ufeff" if chance.random() < 0.2 else ""
        cases.append({"text": mark + text, "delimiter": delimiter, "rows": rows, "is_open": is_open})
    (HERE / "csv.json").write_text(json.dumps(cases, separators=(",", ":"), ensure_ascii=False).replace("},{", "},\n{") + "\n")
    print(sum(case["is_open"] for case in cases), "open,", sum(len({len(row) for row in case["rows"]}) > 1 for case in cases), "ragged")


main()
