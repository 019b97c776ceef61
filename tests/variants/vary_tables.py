"""Tables: delimiters, quotes, encodings, lines `sep=`, ends of lines and compression, in order and shuffled.

References: Python's `csv`, and pandas (`read_csv` with `dtype=str`), which have to agree. Each row comes with its own texts; a table
that the document describes wrongly is refused, and never read as one column or with other letters.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import Any

import pandas

import compressed
from compressed import Packed
from expect import Expected, compare, described
from kit import Outcome, Variant, collated, main

# Names of encodings in documents, with those of Python.
ENCODINGS = {"utf-8": "utf-8", "utf-16": "utf-16", "windows-1252": "cp1252", "latin-1": "latin-1"}

DELIMITERS = [",", ";", "\t", "|", ":", "^", "~", " "]

TEXTS = ["", "a", "1", "2.5", "true", "null", "NA", "caf\u00e9", "\u00fc\u00df", "stra\u00dfe; 7", "a,b", "a;b", "a|b", "a\tb", "a:b", "x^y~z", "it's", 'say "so"', '"', "''",
         "two\nlines", "two\r\nlines", " space ", "sep=;", "#no comment", "\\n", "back\\slash", "007", "1e5", "=1+1"]
# Letters of single encodings.
LETTERS = {
    "utf-8": ["\u65e5\u672c", "\U0001f600", "\u20ac", "e\u0301", "\u0394"], "utf-16": ["\u65e5\u672c", "\U0001f600", "\u20ac", "\ufeff", "\u0a0d", "\u0d0a", "\u2c22", "\u222c"],
    "windows-1252": ["\u20ac 5", "\u201cso\u201d", "\u2013", "\u2122", "\u0152uvre"], "latin-1": ["\xa4", "\x80", "\x93", "\xff", "\xa0"],
}
NAMES = ["a", "b", "c", "name", "gr\u00f6\u00dfe", "prix \u00e0", "x.y", "a b"]


@dataclass
class Table:
    """One file."""

    name: str
    packed: Packed
    rows: list[dict[str, str]] = field(default_factory=list)


def spelled(rng: Any, rows: list[list[str]], delimiter: str, quote: str, end: str) -> str:
    """The text of a table, in one of the styles of other programs."""
    out = io.StringIO()
    # `csv` quotes a line feed only if it is in the line ends.
    style = rng.choice(["minimal", "minimal", "all", "some"] if "\n" in end else ["all", "some"])
    if style == "some":
        # Quotes where none are needed, as spreadsheets and databases write.
        for row in rows:
            cells = []
            for cell in row:
                needed = any(character in cell for character in (delimiter, quote, "\r", "\n")) or (len(row) == 1 and not cell)
                cells.append(quote + cell.replace(quote, quote * 2) + quote if needed or rng.random() < 0.4 else cell)
            out.write(delimiter.join(cells) + end)
        return out.getvalue()
    writer = csv.writer(out, delimiter=delimiter, quotechar=quote, lineterminator=end, quoting=csv.QUOTE_MINIMAL if style == "minimal" else csv.QUOTE_ALL)
    writer.writerows(rows)
    return out.getvalue()


def by_csv(text: str, delimiter: str, quote: str) -> list[dict[str, str]]:
    """Rows as Python's `csv` reads them; blank lines are no rows."""
    lines = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote, strict=True) if row]
    return [dict(zip(lines[0], row, strict=True)) for row in lines[1:]]


def by_pandas(data: bytes, delimiter: str, quote: str, encoding: str) -> list[dict[str, str]]:
    """Rows as pandas reads them."""
    table = pandas.read_csv(io.BytesIO(data), sep=delimiter, quotechar=quote, encoding=encoding, dtype=str, keep_default_na=False, skip_blank_lines=True, engine="c")
    return [{str(name): str(value) for name, value in row.items()} for row in table.to_dict("records")]


def encoded(rng: Any, text: str, encoding: str) -> tuple[bytes, str]:
    """Bytes of a text, and the form in words."""
    if encoding == "utf-8":
        marked = rng.random() < 0.4
        return text.encode("utf-8-sig" if marked else "utf-8"), "UTF-8 with a mark" if marked else "UTF-8"
    if encoding == "utf-16":
        order = rng.choice(["le", "be"])
        return ("\ufeff" + text).encode(f"utf-16-{order}"), f"UTF-16 {order.upper()} with a mark"
    return text.encode(ENCODINGS[encoding]), encoding


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choice(["described", "described", "described", "compressed", "compressed", *KINDS])
    variant.tags.append(kind)
    if kind in KINDS:
        KINDS[kind](variant, kind)
    else:
        described_tables(variant, kind)


def draw(variant: Variant, delimiter: str, quote: str, encoding: str, first: int, names: list[str], end: str, plain: bool = False) -> tuple[str, list[dict[str, str]]]:
    """The text of a table and the rows that `csv` finds in it."""
    rng = variant.rng
    pool = ["a", "1", "2.5", "x y"] if plain else [*TEXTS, *LETTERS[encoding] * 2]
    pool = [text for text in pool if is_encodable(text, encoding)]
    rows = [names]
    for number in range(first, first + rng.choice([1, 2, 5, 12])):
        rows.append([str(number) if name == "id" else rng.choice(pool) for name in names])
    text = spelled(rng, rows, delimiter, quote, end)
    if not plain and rng.random() < 0.2:
        lines = text.split(end)
        lines.insert(1, "")
        text = end.join(lines) if quote + end not in text and all("\n" not in cell and "\r" not in cell for row in rows for cell in row) else text
    if rng.random() < 0.2:
        text = text.removesuffix(end)
    return text, by_csv(text, delimiter, quote)


def is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(ENCODINGS[encoding])
    except UnicodeEncodeError:
        return False
    return True


def described_tables(variant: Variant, kind: str) -> None:
    """Tables that the document describes rightly."""
    rng = variant.rng
    form = rng.choice(["csv", "csv", "csv", "tsv"])
    delimiter = rng.choice(DELIMITERS) if form == "csv" and rng.random() < 0.8 else "," if form == "csv" else "\t"
    quote = rng.choice(['"', '"', "'"])
    encoding = rng.choice(["utf-8", "utf-8", "utf-16", "windows-1252", "latin-1"])
    names = ["id", *rng.sample([name for name in NAMES if delimiter not in name], rng.randint(1, 3))]
    settings: dict[str, Any] = {}
    if delimiter != {"csv": ",", "tsv": "\t"}[form] or rng.random() < 0.2:
        settings["delimiter"] = delimiter
    if quote != '"' or rng.random() < 0.2:
        settings["quote"] = quote
    if encoding != "utf-8" or rng.random() < 0.2:
        settings["encoding"] = encoding
    tables: list[Table] = []
    expected = Expected()
    one = compressed.draw_kind(rng) if kind == "compressed" else "plain"
    first = 0
    for number in range(rng.choice([1, 1, 2, 3])):
        end = rng.choice(["\n", "\r\n", "\n", "\r"])
        text, rows = draw(variant, delimiter, quote, encoding, first, names, end)
        data, words = encoded(rng, text, encoding)
        other = by_pandas(data, delimiter, quote, "utf-8-sig" if encoding == "utf-8" else ENCODINGS[encoding])
        if other != rows:
            # pandas reads a quote within a value in another way, and a value of one byte order mark.
            variant.tags.append("pandas reads other rows")
        first += len(rows)
        packed = compressed.pack(rng, one, data)
        name = f"t-{number}.{form}" + (compressed.ENDS[one] if rng.random() < 0.75 else "")
        if one != "plain" and rng.random() < 0.12:
            compressed.spoil(rng, packed)
        tables.append(Table(name, packed, rows))
        variant.note(f"{name}: {words}, {one} {packed.form} {packed.damage}: {text[:400]!r}")
        for row in rows:
            expected.values[int(row["id"])] = {name: value for name, value in row.items() if name != "id"}
    for name in names[1:]:
        expected.types[name] = "text"
    shuffle = rng.random() < 0.35
    expected.ordered = not shuffle
    source = {"store": "d", "shuffle": shuffle, "types": {"id": "int"}, **place_of(tables, form, rng), **settings}
    judge_compression(expected, tables, shuffle)
    run(variant, form, source, tables, expected)


def place_of(tables: list[Table], form: str, rng: Any) -> dict[str, Any]:
    """Settings that name the tables."""
    ends = {table.name.split(".", 1)[1] for table in tables}
    if len(tables) == 1 and rng.random() < 0.7:
        return {"key": tables[0].name}
    if ends <= {form, f"{form}.gz", f"{form}.zst"} and rng.random() < 0.6:
        return {"prefix": "t-"}
    return {"prefix": "t-", "suffix": sorted(f".{end}" for end in ends)}


def judge_compression(expected: Expected, tables: list[Table], shuffle: bool) -> None:
    for table in tables:
        kind = table.packed.kind
        if table.packed.damage:
            expected.forbid("damage of a compressed table")
        elif kind in compressed.REFUSED:
            expected.forbid(f"{kind}", compressed.REFUSED[kind][0])
        elif kind != "plain" and shuffle:
            # Records of compressed tables have no places.
            expected.may.append("a shuffle of a compressed table")
    if any(table.packed.damage for table in tables) and any(table.packed.kind in compressed.REFUSED for table in tables):
        expected.may.append("several reasons")


def run(variant: Variant, form: str, source: dict[str, Any], tables: list[Table], expected: Expected) -> Outcome:
    folder = variant.folder("d")
    for table in tables:
        (folder / table.name).write_bytes(table.packed.data)
    outcome = variant.run(collated({form: source}, variant.rng.choice([1, 3, 50])), {"d": folder})
    compare(variant, outcome, expected)
    if outcome.code == 1 and expected.may and any(table.packed.kind != "plain" for table in tables) and not expected.refuse:
        kinds = {table.packed.kind for table in tables} - {"plain"}
        if not any(kind in outcome.words.lower() or "compress" in outcome.words.lower() for kind in kinds):
            variant.differ("a compression that cannot be shuffled is not named", sorted(kinds), outcome.words)
    return outcome


def refusal(variant: Variant, source: dict[str, Any], data: bytes, reason: str, *words: str) -> None:
    """A table that has to be refused, with words of which the message has one."""
    rng = variant.rng
    packed = compressed.pack(rng, rng.choice(["plain", "plain", "gzip", "zstd"]), data)
    folder = variant.folder("d")
    (folder / "t-0.csv").write_bytes(packed.data)
    variant.note(f"t-0.csv: {packed.kind}: {data[:300]!r}")
    source = {"store": "d", "key": "t-0.csv", **source}
    if rng.random() < 0.3:
        source["shuffle"] = True
    if rng.random() < 0.3:
        source["on_damage"] = "skip"
    outcome = variant.run(collated({"csv": source}, 1, max_failures=None), {"d": folder})
    if outcome.code == -9:
        return
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
    elif outcome.code == 0 and outcome.failed and "bytes" in reason:
        # With `skip`, a row of such bytes is a failed sample.
        variant.tags.append("failed")
    elif outcome.code == 0:
        first = {name: repr(value)[:40] for name, value in outcome.samples[0].fields.items()} if outcome.samples else {}
        found = f"{len(outcome.samples)} delivered, {outcome.failed} failed, {first}; {outcome.words}"
        variant.differ(f"not refused: {reason}", f"an end with exit code 1 that says one of {words}", found)
    elif not any(word.lower() in outcome.words.lower() for word in words) and not (packed.kind != "plain" and packed.kind in outcome.words.lower()):
        variant.differ(f"message of a refusal: {reason}", f"one of the words {words}", outcome.words)
    variant.tags.append("refused" if outcome.code else "delivered")


def delimiter_missing(variant: Variant, kind: str) -> None:
    """A table with another delimiter, and a document without `delimiter`."""
    rng = variant.rng
    delimiter = rng.choice([";", "\t", "|"])
    names = ["id", "name", "age"][: rng.randint(2, 3)]
    text, _ = draw(variant, delimiter, '"', "utf-8", 0, names, rng.choice(["\n", "\r\n"]), plain=True)
    if rng.random() < 0.3:
        # Decimal commas: some rows have as many commas as the header, none.
        text = text.replace("2.5", "2 5")
    refusal(variant, {}, encoded(rng, text, "utf-8")[0], "another delimiter", "delimiter")


def encoding_missing(variant: Variant, kind: str) -> None:
    """A table in another encoding, and a document without `encoding`, or with another one."""
    rng = variant.rng
    encoding = rng.choice(["utf-16", "utf-16", "windows-1252", "latin-1"])
    text, rows = draw(variant, ",", '"', encoding, 0, ["id", "name"], rng.choice(["\n", "\r\n"]))
    if encoding != "utf-16":
        # At least one letter that shows the encoding.
        text += f'{len(rows) + 100},caf\u00e9' + "\n" if text.endswith(("\n", "\r")) else f'\n{len(rows) + 100},caf\u00e9\n'
    data, words = encoded(rng, text, encoding)
    variant.note(words)
    if kind == "wrong encoding" and encoding == "utf-16":
        # Text of 16 bits that is read by bytes has zeros.
        wrong = rng.choice(["windows-1252", "latin-1", "utf-8"])
        refusal(variant, {"encoding": wrong}, data, f"UTF-16 as {wrong}", "UTF-16")
    elif kind == "wrong encoding":
        refusal(variant, {"encoding": "utf-16"}, data if len(data) % 2 else data[:-1], "bytes as UTF-16", "UTF-16")
    elif encoding == "utf-16":
        refusal(variant, {}, data, "UTF-16 without `encoding`", "UTF-16")
    else:
        refusal(variant, {}, data, "bytes that are not UTF-8", "UTF-8", "encoding")


def unmarked(variant: Variant, kind: str) -> None:
    """UTF-16 without a byte order mark: the line ends tell the order of bytes, and without `encoding` it is refused."""
    rng = variant.rng
    text, rows = draw(variant, ",", '"', "utf-16", 0, ["id", "name"], "\n", plain=rng.random() < 0.5)
    order = rng.choice(["le", "be"])
    data = text.encode(f"utf-16-{order}")
    variant.note(f"UTF-16 {order.upper()} without a mark: {text[:200]!r}")
    named = rng.choice([None, "utf-16", "utf-16"])
    folder = variant.folder("d")
    (folder / "t-0.csv").write_bytes(data)
    source = {"store": "d", "key": "t-0.csv", "types": {"id": "int"}, **({"encoding": named} if named else {})}
    outcome = variant.run(collated({"csv": source}), {"d": folder})
    variant.tags.append(f"unmarked {order}, {named}: {'delivered' if outcome.code == 0 else 'refused'}")
    if outcome.code == 0:
        expected = Expected(values={int(row["id"]): {"name": row["name"]} for row in rows}, types={"name": "text"}, ordered=True)
        compare(variant, outcome, expected)
    elif named:
        variant.differ("unmarked UTF-16 is refused", f"{len(rows)} rows", outcome.words)
    elif not any(word in outcome.words for word in ("UTF-16", "utf-16", "encoding")):
        variant.differ("unmarked UTF-16 is not named", "UTF-16", outcome.words)


def sep_line(variant: Variant, kind: str) -> None:
    """A first line `sep=;`, as spreadsheets write."""
    rng = variant.rng
    delimiter = rng.choice([";", ",", "\t", "|"])
    end = rng.choice(["\n", "\r\n"])
    text, rows = draw(variant, delimiter, '"', "utf-8", 0, ["id", "name"], end, plain=True)
    text = rng.choice(["sep=", "sep=", "SEP=", '"sep='])[:] + delimiter + end + text
    if text.startswith('"'):
        text = text.replace(end, '"' + end, 1)
    data = encoded(rng, text, "utf-8")[0]
    if rng.random() < 0.6:
        refusal(variant, {}, data, "a first line `sep=`", "sep=", "delimiter")
        return
    # With `delimiter`, the line is no header: it is left out or refused.
    folder = variant.folder("d")
    (folder / "t-0.csv").write_bytes(data)
    variant.note(f"t-0.csv: {data[:300]!r}")
    outcome = variant.run(collated({"csv": {"store": "d", "key": "t-0.csv", "types": {"id": "int"}, "delimiter": delimiter}}), {"d": folder})
    variant.tags.append(f"sep= with `delimiter`: {'delivered' if outcome.code == 0 else 'refused'}")
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
    elif outcome.code == 0:
        compare(variant, outcome, Expected(values={int(row["id"]): {"name": row["name"]} for row in rows}, types={"name": "text"}, ordered=True))


def one_column(variant: Variant, kind: str) -> None:
    """A table that really has one column: its name tells whether it is one."""
    rng = variant.rng
    name = rng.choice(["id", "id;age", "id|age", "id\tage", "id:age", "id age", "id/age"])
    quote = rng.random() < 0.4
    header = f'"{name}"' if quote else name
    text = header + "\n" + "".join(f"{number}\n" for number in range(rng.randint(1, 5)))
    doubtful = any(character in name for character in ";|\t")
    written = rng.random() < 0.4
    source: dict[str, Any] = {"types": {name: "int"}}
    if doubtful and not written:
        refusal(variant, source, text.encode(), "one column whose name has another delimiter", "delimiter")
        return
    folder = variant.folder("d")
    (folder / "t-0.csv").write_text(text)
    variant.note(f"t-0.csv: {text!r}")
    if written:
        source["delimiter"] = ","
    outcome = variant.run(collated({"csv": {"store": "d", "key": "t-0.csv", **source}}), {"d": folder})
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    found = [int(sample.fields[name]) if name in sample.fields else None for sample in outcome.samples]
    wanted = list(range(text.count("\n") - 1))
    if found != wanted:
        variant.differ(f"a table of one column{', `delimiter` written' if written else ''}", wanted, f"{found}; {outcome.words}")


def bad_bytes(variant: Variant, kind: str) -> None:
    """Bytes that an encoding does not have: a fault, or the letter that browsers read."""
    rng = variant.rng
    encoding = rng.choice(["utf-8", "windows-1252", "utf-16", "latin-1"])
    text = "id,name\n0,good\n1,x?y\n2,good\n"
    if encoding == "utf-8":
        bad = rng.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x82"])
        data, wanted = text.encode().replace(b"?", bad), None
    elif encoding == "windows-1252":
        bad = bytes([rng.choice([0x81, 0x8D, 0x8F, 0x90, 0x9D])])
        data, wanted = text.encode().replace(b"?", bad), f"x{bad.decode('latin-1')}y"
    elif encoding == "latin-1":
        bad = bytes([rng.randint(0x80, 0xFF)])
        data, wanted = text.encode().replace(b"?", bad), f"x{bad.decode('latin-1')}y"
    else:
        bad = rng.choice([b"\x00\xd8", b"\x00\xdc", b"\x00\xdc\x00\xd8"])
        whole = ("\ufeff" + text).encode("utf-16-le")
        data, wanted = whole.replace("?".encode("utf-16-le"), bad), None
        if rng.random() < 0.3:
            # Half a letter at the end.
            data, bad = whole[:-1], b""
    folder = variant.folder("d")
    (folder / "t-0.csv").write_bytes(data)
    variant.note(f"{encoding}, {bad!r}: {data!r}")
    source: dict[str, Any] = {"store": "d", "key": "t-0.csv", "types": {"id": "int"}}
    if encoding != "utf-8":
        source["encoding"] = encoding
    outcome = variant.run(collated({"csv": source}), {"d": folder})
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    found = [sample.fields.get("name") for sample in outcome.samples]
    if encoding == "latin-1":
        if found != [b"good", wanted.encode(), b"good"]:
            variant.differ("a letter of Latin-1", wanted, f"{found}; {outcome.words}")
    elif outcome.code == 0 and not outcome.failed and (wanted is None or found != [b"good", wanted.encode(), b"good"]):
        variant.differ(f"bytes that {encoding} does not have pass", "a fault", found)
    variant.tags.append(f"bad bytes of {encoding}: {'delivered' if outcome.code == 0 else 'refused'}")


def doubtful_names(variant: Variant, kind: str) -> None:
    """A table of several columns that would have more with another delimiter: it is refused unless `delimiter` is written."""
    rng = variant.rng
    names = ["id", *rng.choice([["a;b;c"], ["a|b|c|d"], ["a\tb\tc", "x"], ["a;b"], ["a;b", "c;d", "x"], ["a|b", "x", "y"]])]
    other = max(",".join(names).count(character) for character in ";|\t") + 1
    count = rng.randint(1, 3)
    text = ",".join(f'"{name}"' if rng.random() < 0.3 else name for name in names) + "\n"
    text += "".join(",".join([str(number), *("x" for _ in names[1:])]) + "\n" for number in range(count))
    written = rng.random() < 0.5
    if other > len(names) and not written:
        refusal(variant, {}, text.encode(), "more columns with another delimiter", "delimiter")
        return
    folder = variant.folder("d")
    (folder / "t-0.csv").write_text(text)
    variant.note(f"t-0.csv: {text!r}")
    expected = Expected(values={number: {name: "x" for name in names[1:]} for number in range(count)}, ordered=True)
    if other == len(names) and not written:
        expected.may.append("as many columns with another delimiter")
    source = {"store": "d", "key": "t-0.csv", "types": {"id": "int"}, **({"delimiter": ","} if written else {})}
    compare(variant, variant.run(collated({"csv": source}), {"d": folder}), expected)


def no_quotes(variant: Variant, kind: str) -> None:
    """`"quote": null`: quotes are letters as all others."""
    rng = variant.rng
    pool = ["a", '"', '"b', 'c"', "d'e", '""', "it's", 'say "so"', ""]
    rows = [["id", "name", "x"], *[[str(number), rng.choice(pool), rng.choice(pool)] for number in range(rng.choice([1, 5, 20]))]]
    delimiter = rng.choice([",", ";", "\t"])
    text = "".join(delimiter.join(row) + "\n" for row in rows)
    lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=csv.QUOTE_NONE))
    folder = variant.folder("d")
    (folder / "t-0.csv").write_text(text)
    variant.note(f"t-0.csv: {text!r}")
    source = {"store": "d", "key": "t-0.csv", "types": {"id": "int"}, "quote": None, "delimiter": delimiter, "shuffle": rng.random() < 0.4}
    values = {int(line[0]): dict(zip(lines[0][1:], line[1:])) for line in lines[1:]}
    expected = Expected(values=values, types={"name": "text", "x": "text"}, ordered=not source["shuffle"])
    compare(variant, variant.run(collated({"csv": source}, rng.choice([1, 4])), {"d": folder}), expected)


def twice(variant: Variant, kind: str) -> None:
    """A listing that has a table compressed and not: its rows never come twice."""
    rng = variant.rng
    text = "id,name\n0,a\n1,b\n"
    folder = variant.folder("d")
    (folder / "t-0.csv").write_text(text)
    packed = compressed.pack(rng, rng.choice(["gzip", "zstd"]), text.encode())
    (folder / ("t-0.csv" + compressed.ENDS[packed.kind])).write_bytes(packed.data)
    outcome = variant.run(collated({"csv": {"store": "d", "prefix": "t-", "types": {"id": "int"}}}), {"d": folder})
    if outcome.code == 0:
        variant.differ("a table comes compressed and not", "a fault", described(outcome))
    elif "t-0.csv" not in outcome.words:
        variant.differ("message of a table that is there twice", "t-0.csv", outcome.words)


def wrong_quote(variant: Variant, kind: str) -> None:
    """Values with quotes of another kind than the document names are read as Python's `csv` reads them, or refused."""
    rng = variant.rng
    written, named = rng.choice([("'", '"'), ('"', "'")])
    rows = [["id", "name"], *[[str(number), rng.choice(["a", "b c", "d,e", "it"])] for number in range(4)]]
    out = io.StringIO()
    csv.writer(out, quotechar=written, quoting=csv.QUOTE_NONNUMERIC if rng.random() < 0.3 else csv.QUOTE_MINIMAL, lineterminator="\n").writerows(rows)
    text = out.getvalue()
    settings = {"quote": named} if named != '"' or rng.random() < 0.5 else {}
    folder = variant.folder("d")
    (folder / "t-0.csv").write_text(text)
    variant.note(f"t-0.csv: {text!r}")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), quotechar=named))
        whole = all(len(row) == len(lines[0]) for row in lines)
    except csv.Error:
        lines, whole = [], False
    outcome = variant.run(collated({"csv": {"store": "d", "key": "t-0.csv", **settings}}), {"d": folder})
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    found = [{name: value.decode() for name, value in sample.fields.items()} for sample in outcome.samples]
    if whole and found != [dict(zip(lines[0], row)) for row in lines[1:]]:
        variant.differ("quotes of another kind", lines, f"{found}; {outcome.words}")
    elif not whole and outcome.code == 0 and not outcome.failed:
        variant.differ("rows of different lengths pass", lines, found)


# Tables that are not as the document says, or whose description lacks something.
KINDS = {
    "doubtful names": doubtful_names, "no quotes": no_quotes, "twice": twice,
    "delimiter missing": delimiter_missing, "encoding missing": encoding_missing, "wrong encoding": encoding_missing, "sep line": sep_line, "one column": one_column,
    "unmarked": unmarked, "bad bytes": bad_bytes, "wrong quote": wrong_quote,
}

if __name__ == "__main__":
    main("tables", make)
