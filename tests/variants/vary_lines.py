"""Lines: NaN and Infinity, near misses of them, halves of surrogate pairs, UTF-16, and compressed NDJSON.

References: Python's `json` for numbers; for texts the same, after which each half of a pair that stands alone becomes U+FFFD, as Go reads
it. A line that `json` does not read is a fault, and a file of another encoding or compression is refused by its name.
"""

from __future__ import annotations

import json
import re
from typing import Any

import compressed
from compressed import Packed
from expect import Expected, Json, compare
from kit import Outcome, Variant, collated, main

NUMBERS = ["NaN", "Infinity", "-Infinity"]
ORDINARY = ["0.5", "-2.25", "1e3", "0.0", "-0.0", "1.7976931348623157e308", "5e-324"]
WHOLE = ["0", "1", "-7", "9007199254740992"]

# Spellings that `json` refuses.
MISSES = ["nan", "Nan", "NAN", "-NaN", "+NaN", "infinity", "INFINITY", "+Infinity", "Inf", "-Inf", "inf", "-inf", "Infinit", "Infinityy", "NaNN", "NaN1", "1NaN",
          "- Infinity", "-infinity", "--Infinity", "Na N", "NaN.0", "-", "+1", "01", ".5", "1.", "0x1", "1_000", "1e", "\u221e", "1.#INF", "1.#QNAN",
          "undefined", "None", "True", "N", "NaNfinity", "Infinity1", "-Infinity-"]

# Lines in which they stand.
PLACES = ['{"id": %d, "a": %s}', '{"a": %s, "id": %d}', '{"id": %d, "a": 0.5, "b": [%s]}', '{"id": %d, "a": 0.5, "b": {"c": %s}}', "%s", "[%s]", '{%s: 1, "id": %d}',
          '{"id": %d, "a": 1.5} %s']

# Numbers that are beyond float64 or small: `json` reads them as infinity and zero.
BEYOND = ["1e400", "-1e400", "1e-400", "1" + "0" * 400 + ".0"]

HIGH = [0xD800, 0xD83D, 0xDBFF, 0xDA00]
LOW = [0xDC00, 0xDE00, 0xDFFF]
PLAIN = ["a", "x y", "\\n", "\\\\", "\\\\ud83d", "\\u0041", "\\ufffd", "\\uE000", "\\uD7FF", "\ufffd", "\U0001f600", "\u00fc", '\\"', "\\/", "u", "\\\\\\u0042", "\\t"]


def escape(rng: Any, unit: int) -> str:
    digits = f"{unit:04x}"
    return "\\u" + rng.choice([digits, digits.upper(), "".join(rng.choice([digit, digit.upper()]) for digit in digits)])


def units(rng: Any, count: int) -> str:
    """A text of JSON with halves of pairs in all combinations, in quotes."""
    parts = []
    for _ in range(count):
        kind = rng.choice(["high", "low", "pair", "swapped", "high high", "low low", "high pair", "pair low", "plain", "high raw"])
        high, low = escape(rng, rng.choice(HIGH)), escape(rng, rng.choice(LOW))
        parts.append({
            "high": high, "low": low, "pair": high + low, "swapped": low + high, "high high": high + escape(rng, rng.choice(HIGH)), "low low": low + escape(rng, rng.choice(LOW)),
            "high pair": escape(rng, rng.choice(HIGH)) + high + low, "pair low": high + low + escape(rng, rng.choice(LOW)), "plain": rng.choice(PLAIN),
            # A letter after a half is not the other half.
            "high raw": high + rng.choice(["\U0001f600", "\\\\ude00", "\\n", "ude00", "\\u0041"]),
        }[kind])
    return '"' + "".join(parts) + '"'


def mended(value: Any) -> Any:
    """A value in which each half of a pair that stands alone is U+FFFD."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(name): mended(item) for name, item in value.items()}
    return value


def has_halves(value: Any) -> bool:
    return mended(value) != value if not isinstance(value, float) else False


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choices(list(KINDS), [3, 2, 3, 2, 1, 1, 1])[0]
    variant.tags.append(kind)
    KINDS[kind](variant)


def run(variant: Variant, files: list[tuple[str, Packed]], expected: Expected, **settings: Any) -> Outcome:
    """Writes files and runs a document over them."""
    rng = variant.rng
    folder = variant.folder("d")
    for name, packed in files:
        (folder / name).write_bytes(packed.data)
    ends = {name.split(".", 1)[1] for name, _ in files}
    source: dict[str, Any] = {"store": "d", **settings}
    if len(files) == 1 and rng.random() < 0.7:
        source["key"] = files[0][0]
    elif ends <= {"ndjson", "ndjson.gz", "ndjson.zst"} and rng.random() < 0.6:
        source["prefix"] = "part-"
    else:
        source |= {"prefix": "part-", "suffix": sorted("." + end for end in ends)}
    if source.get("shuffle"):
        expected.ordered = False
    outcome = variant.run(collated({"records": source}, rng.choice([1, 3, 50])), {"d": folder})
    compare(variant, outcome, expected)
    return outcome


def split(variant: Variant, lines: list[str]) -> list[tuple[str, Packed]]:
    """Lines in one to three plain files."""
    rng = variant.rng
    end = rng.choice(["\n", "\n", "\r\n"])
    count = min(len(lines), rng.choice([1, 1, 2, 3]))
    places = [len(lines) * number // count for number in range(count + 1)]
    files = []
    for number, (first, last) in enumerate(zip(places, places[1:])):
        text = rng.choice(["", "", "\ufeff"]) + end.join(lines[first:last]) + rng.choice(["", end, end + end])
        variant.note(f"part-{number}.ndjson: {text[:900]}")
        files.append((f"part-{number}.ndjson", Packed("plain", "", text.encode("utf-8", "surrogatepass"))))
    return files


def numbers(variant: Variant) -> None:
    """NaN and Infinity as values of members, alone, beside whole and broken numbers, nulls and texts, learnt or declared."""
    rng = variant.rng
    profiles = {
        "special": NUMBERS, "with floats": NUMBERS + ORDINARY, "with ints": NUMBERS + WHOLE, "with all": NUMBERS + ORDINARY + WHOLE, "with nulls": [*NUMBERS, "null", "1.5"],
        "with texts": [*NUMBERS, '"x"'], "with text NaN": ['"NaN"', '"x"', '"-Infinity"'], "with bools": [*NUMBERS, "true"], "rarely": [*WHOLE * 4, "NaN"],
        "beyond": [*BEYOND, "0.5"], "with odd ints": [*NUMBERS, "9007199254740993"],
    }
    expected = Expected(ordered=True)
    columns = {name: rng.choice(list(profiles)) for name in ["a", "b"][: rng.randint(1, 2)]}
    count = rng.choice([1, 3, 8, 20])
    lines = []
    drawn: dict[str, list[Any]] = {name: [] for name in columns}
    for number in range(count):
        parts = [f'"id": {number}']
        for name, profile in columns.items():
            spelling = rng.choice(profiles[profile])
            parts.append(f'"{name}":{rng.choice(["", " ", "  "])}{spelling}{rng.choice(["", " "])}')
            drawn[name].append(json.loads(spelling))
            if spelling in BEYOND and "-400" not in spelling:
                # Infinity for Python, and for others a number that float64 does not hold.
                expected.may.append("a number beyond float64")
        if rng.random() < 0.3:
            rng.shuffle(parts)
        lines.append("{" + ", ".join(parts) + "}")
    settings: dict[str, Any] = {"shuffle": rng.random() < 0.35}
    declared = {name: rng.choice(["float", "float", "int", "text", "bool"]) for name in columns if rng.random() < 0.25}
    policies: dict[str, Any] = {}
    for name, values in drawn.items():
        judge(expected, name, values, declared.get(name), policies, rng)
    if declared:
        settings["types"] = declared
    if policies:
        settings["missing"] = policies
    outcome = run(variant, split(variant, lines), expected, **settings)
    if outcome.code == 0 and any(profile == "beyond" for profile in columns.values()):
        variant.tags.append("beyond float64: delivered")


def judge(expected: Expected, name: str, values: list[Any], declared: str | None, policies: dict[str, Any], rng: Any) -> None:
    """Adds what is right for one member."""
    present = [value for value in values if value is not None]
    kinds = {"text" if isinstance(value, str) else "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int" for value in present}
    kind = "text" if kinds == {"text"} else "float" if "float" in kinds else "int" if kinds and kinds <= {"int", "bool"} else None
    if "text" in kinds and len(kinds) > 1:
        expected.forbid("a text beside a number", name)
        expected.unknown.add(name)
    elif "bool" in kinds and len(kinds) > 1:
        expected.may.append("truth values beside numbers")
        expected.unknown.add(name)
    if declared != "text" and "float" in kinds and any(isinstance(value, int) and not isinstance(value, bool) and int(float(value)) != value for value in present):
        expected.forbid("a whole number beside floats that float64 does not hold", name)
        expected.unknown.add(name)
    if declared in ("int", "bool") and any(isinstance(value, float) and not value.is_integer() for value in present):
        expected.forbid(f"a broken number in a member of type {declared}", name)
        expected.unknown.add(name)
    elif declared in ("int", "bool") and kinds != {declared}:
        expected.may.append("values of other kinds than declared")
        expected.unknown.add(name)
    elif declared == "text" and kinds != {"text"} and present:
        # A number may become its text, or be refused.
        expected.may.append("numbers in a member of type text")
        expected.unknown |= {name, f"{name}.present"}
    elif declared == "float" and "text" in kinds:
        expected.forbid("another type than declared", name)
        expected.unknown |= {name, f"{name}.present"}
    elif declared == "float":
        kind = "float"
    optional = 0 < len(present) < len(values)
    policy = rng.choice(["mask", "nan"]) if optional and kind == "float" and rng.random() < 0.7 else None
    if policy:
        policies[name] = policy
    elif optional:
        expected.forbid("absent in a part of the data", name, "missing")
    if kind and name not in expected.unknown:
        expected.types[name] = kind
    for number, value in enumerate(values):
        fields = expected.values.setdefault(number, {})
        if value is None:
            fields[name] = {"mask": 0.0, "nan": float("nan")}.get(policy or "")
        else:
            fields[name] = value
        if policy == "mask":
            fields[f"{name}.present"] = value is not None
            expected.types[f"{name}.present"] = "bool"


def near_misses(variant: Variant) -> None:
    """Spellings that are no JSON, also for Python: each is a fault of its line."""
    rng = variant.rng
    count = rng.choice([2, 4, 8])
    bad = rng.sample(range(count), rng.choice([1, 1, 2]))
    lines = []
    expected = Expected(ordered=True, types={"a": "float"})
    for number in range(count):
        miss = rng.choice(MISSES)
        form = rng.choice(PLACES)
        if number in bad:
            places = form.count("%")
            text = form % ((miss,) if places == 1 else (number, miss) if form.index("%d") < form.index("%s") else (miss, number))
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if isinstance(value, dict):
                raise AssertionError(f"`json` reads {text}")
            lines.append(text)
            expected.failing.add(number)
        else:
            lines.append(f'{{"id": {number}, "a": {rng.choice(NUMBERS + ORDINARY)}}}')
            expected.values[number] = {"a": json.loads(lines[-1])["a"]}
    for number in expected.failing:
        expected.values[number] = {}
    skip = rng.random() < 0.6
    if not skip:
        expected.forbid("a line that is no JSON")
        expected.failing.clear()
    files = split(variant, lines)
    settings: dict[str, Any] = {"shuffle": rng.random() < 0.3}
    if skip:
        settings["on_damage"] = "skip"
        if not any(number not in expected.failing for number in range(count)):
            expected.may.append("no sample is left")
    rates(variant, files, expected, settings)


def rates(variant: Variant, files: list[tuple[str, Packed]], expected: Expected, settings: dict[str, Any]) -> None:
    """Runs a document in which any number of samples may fail."""
    rng = variant.rng
    folder = variant.folder("d")
    for name, packed in files:
        (folder / name).write_bytes(packed.data)
    source: dict[str, Any] = {"store": "d", **settings, **({"key": files[0][0]} if len(files) == 1 else {"prefix": "part-"})}
    if source.get("shuffle"):
        expected.ordered = False
    compare(variant, variant.run(collated({"records": source}, rng.choice([1, 3, 50]), max_failures=None), {"d": folder}), expected)


def nested(variant: Variant) -> None:
    """NaN and Infinity within arrays and objects, which are texts with their JSON."""
    rng = variant.rng

    def value(depth: int) -> str:
        kind = rng.choice(["special", "special", "number", "text", "array", "object"]) if depth else rng.choice(["array", "object"])
        if kind == "array" and depth < 4:
            return "[" + ", ".join(value(depth + 1) for _ in range(rng.randint(0, 3))) + "]"
        if kind == "object" and depth < 4:
            return "{" + ", ".join(f'"{name}": {value(depth + 1)}' for name in rng.sample(["x", "NaN", "-Infinity", "y"], rng.randint(0, 3))) + "}"
        return {"special": rng.choice(NUMBERS), "number": rng.choice(ORDINARY + WHOLE)}.get(kind) or rng.choice(['"NaN"', '"a"', '"\\"NaN\\""', '"[NaN]"', "null", "true"])

    lines = []
    expected = Expected(ordered=True, types={"a": "text"})
    for number in range(rng.choice([1, 4, 8])):
        text = value(0)
        lines.append(f'{{"id": {number}, "a": {text}}}')
        expected.values[number] = {"a": Nested(json.loads(text))}
    run(variant, split(variant, lines), expected, shuffle=rng.random() < 0.3)


class Nested(Json):
    """JSON that may have NaN in it, which equals itself by its spelling."""

    def __init__(self, value: Any):
        super().__init__(Spelled(value))


class Spelled:
    """A value that equals another with the same JSON, where a half of a pair is U+FFFD."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return json.dumps(mended(self.value), sort_keys=True) == json.dumps(mended(other), sort_keys=True)

    def __repr__(self) -> str:
        return json.dumps(self.value)


def surrogates(variant: Variant) -> None:
    """Halves of pairs in texts of members, in arrays and objects, and in keys."""
    rng = variant.rng
    place = rng.choice(["member", "member", "member", "array", "object", "key"])
    variant.tags.append(f"surrogates in {place}")
    expected = Expected(ordered=True, types={"a": "text"})
    lines, halves = [], 0
    keys: dict[int, str] = {}
    for number in range(rng.choice([1, 2, 5, 10])):
        text = units(rng, rng.choice([0, 1, 1, 2, 4])) if rng.random() < 0.8 else '"plain"'
        if place == "array":
            text = f"[{text}, 1, {units(rng, 1)}]"
        elif place == "object":
            text = f'{{"x": {text}, {units(rng, 1)}: 2}}'
        value = json.loads(text)
        if has_halves(value):
            halves += 1
        if place == "key":
            # The number keeps keys apart.
            lines.append(f'{{"id": {number}, "key": {text[:-1]}{number}", "a": {text}}}')
            keys[number] = mended(value) + str(number)
        else:
            lines.append(f'{{"id": {number}, "a": {text}}}')
        expected.values[number] = {"a": mended(value) if isinstance(value, str) else Nested(value)}
    outcome = run(variant, split(variant, lines), expected, shuffle=rng.random() < 0.3)
    if outcome.code == 0 and keys:
        for sample in outcome.samples:
            if "id" in sample.fields and sample.key != keys[int(sample.fields["id"])]:
                variant.differ("a key with halves of pairs", keys[int(sample.fields["id"])], sample.key)
                break
    if outcome.code == 0 and place == "member":
        said = re.search(r"surrogate|U\+FFFD|\ufffd", outcome.words, re.IGNORECASE)
        if halves and not said:
            variant.differ("halves of pairs are not warned of", f"a warning that counts {halves}", outcome.words or "no words")
        elif not halves and said:
            variant.differ("a warning of halves of pairs that are not there", "no warning", outcome.words)


def names(variant: Variant) -> None:
    """Names of members with NaN and escapes: only the latter are names."""
    rng = variant.rng
    name = rng.choice(["NaN", "-Infinity", "Infinity", "\U0001f600", "a\u0301"])
    spelled = json.dumps(name, ensure_ascii=rng.random() < 0.7)
    expected = Expected(ordered=True, types={name: "float"})
    lines = []
    for number in range(rng.choice([1, 3])):
        text = rng.choice(NUMBERS + ORDINARY)
        lines.append(f'{{{spelled}: {text}, "id": {number}}}')
        expected.values[number] = {name: json.loads(text)}
    run(variant, split(variant, lines), expected)


def plain_lines(rng: Any, first: int) -> tuple[str, dict[int, dict[str, Any]]]:
    lines, values = [], {}
    for number in range(first, first + rng.choice([1, 3, 30])):
        text = rng.choice(["a", "\u00fc", "x" * 300, "two\nlines"])
        score = rng.choice(["0.5", "NaN", "2.5", "-Infinity"])
        lines.append(f'{{"id": {number}, "a": {json.dumps(text, ensure_ascii=rng.random() < 0.5)}, "score": {score}}}')
        values[number] = {"a": text, "score": json.loads(score)}
    return "\n".join(lines) + rng.choice(["", "\n"]), values


def packed_lines(variant: Variant) -> None:
    """Compressed files, under their own names or under others."""
    rng = variant.rng
    one = compressed.draw_kind(rng)
    expected = Expected(ordered=True, types={"a": "text", "score": "float"})
    files: list[tuple[str, Packed]] = []
    shuffle = rng.random() < 0.25
    for number in range(rng.choice([1, 1, 2, 3])):
        text, values = plain_lines(rng, number * 100)
        kind = one if rng.random() < 0.8 else compressed.draw_kind(rng)
        packed = compressed.pack(rng, kind, text.encode())
        if compressed.unpack(packed) != text.encode():
            raise AssertionError("the reference reads other bytes")
        if kind != "plain" and rng.random() < 0.12:
            compressed.spoil(rng, packed)
        end = compressed.ENDS[kind] if rng.random() < 0.7 else rng.choice(list(compressed.ENDS.values()))
        name = f"part-{number}.{rng.choice(['ndjson', 'jsonl'])}{end}"
        files.append((name, packed))
        expected.values |= values
        variant.note(f"{name}: {kind}, {packed.form}, {packed.damage}, {len(values)} lines")
        if packed.damage:
            expected.forbid("damage of a compressed file")
        elif kind in compressed.REFUSED:
            expected.forbid(kind, compressed.REFUSED[kind][0])
        elif kind != "plain" and shuffle:
            expected.may.append("a shuffle of a compressed file")
    kinds = {packed.kind for _, packed in files} - {"plain"}
    if len(expected.refuse) > 1:
        expected.may.append("several reasons")
    outcome = run(variant, files, expected, shuffle=shuffle)
    if outcome.code == 1 and kinds and expected.may and not expected.refuse and not any(kind in outcome.words.lower() for kind in [*kinds, "compress"]):
        variant.differ("a compression that cannot be shuffled is not named", sorted(kinds), outcome.words)


def encodings(variant: Variant) -> None:
    """Files of UTF-16 and UTF-32, which are refused by name, and bytes that are no UTF-8."""
    rng = variant.rng
    text, values = plain_lines(rng, 0)
    kind = rng.choice(["utf-16-le", "utf-16-be", "utf-16-le", "utf-16-be", "utf-32-le", "windows-1252", "surrogates in UTF-8"])
    marked = rng.random() < 0.7
    if kind == "surrogates in UTF-8":
        data = text.encode().replace(b'"a": "', b'"a": "\xed\xa0\xbd', 1)
        words = ["UTF-8"]
    elif kind == "windows-1252":
        data = text.replace('"a": "', '"a": "\u00fc', 1).encode("cp1252")
        words = ["UTF-8"]
    else:
        data = (("\ufeff" if marked else "") + text).encode(kind)
        words = ["UTF-16"] if "16" in kind else ["UTF-"]
    packed = compressed.pack(rng, rng.choice(["plain", "plain", "gzip", "zstd"]), data)
    folder = variant.folder("d")
    (folder / "part-0.ndjson").write_bytes(packed.data)
    variant.note(f"{kind}{' with a mark' if marked else ''}, {packed.kind}, {len(values)} lines: {data[:100]!r}")
    source: dict[str, Any] = {"store": "d", "key": "part-0.ndjson", "shuffle": packed.kind == "plain" and rng.random() < 0.3}
    if rng.random() < 0.3:
        source["on_damage"] = "skip"
    outcome = variant.run(collated({"records": source}, 1, max_failures=None), {"d": folder})
    label = f"{kind}{', marked' if marked and 'utf' in kind else ''}"
    if outcome.code == 0 and "utf" not in kind and outcome.failed:
        variant.tags.append("failed")
    elif outcome.code == 0:
        variant.differ(f"{label} passes", "a refusal", f"{len(outcome.samples)} delivered, {outcome.failed} failed; {outcome.words}")
    elif outcome.code == 1 and not any(word in outcome.words for word in words) and (marked or "utf" not in kind):
        variant.differ(f"{label} is not named", words, outcome.words)
    elif outcome.code == 1 and not any(word in outcome.words for word in words):
        variant.tags.append(f"{label} is refused, and not named")


KINDS = {"numbers": numbers, "near misses": near_misses, "surrogates": surrogates, "compressed": packed_lines, "encodings": encodings, "names": names, "nested": nested}

if __name__ == "__main__":
    main("lines", make)
