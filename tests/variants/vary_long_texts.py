"""Long texts: texts beyond the limits of `std/text` with `max_length`, for tokenizers of several kinds and both sides of truncation.

Reference: `tokenizers`, which splits the whole text and truncates the tokens. The texts have places that a reader of their ends alone
gets wrong: no spaces, only spaces, combining marks, special tokens, characters that the normalizer removes, and unknown ones in a row.
A text that is longer than the limit for its `memory_mib` may fail, but not if the end that stays has short words.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

from kit import Variant, collated, main  # noqa: E402
from stages import counted  # noqa: E402

# Bytes of a text above which only a part of it is split; with 256 MiB of memory, the maximum of a text that is split whole.
LIMIT = 500_000

SPECIALS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "<mark>"]


def words(rng: random.Random, letters: str, count: int = 300) -> list[str]:
    return ["".join(rng.choice(letters) for _ in range(rng.randint(1, 9))) for _ in range(count)]


def prose(rng: random.Random, letters: str = "abcdefghij", gaps: str = "     \n") -> str:
    known = words(rng, letters)
    return "".join(rng.choice(known) + rng.choice(gaps) for _ in range(400))


# Makers of a piece of text, which is repeated; by the names of their styles.
STYLES: dict[str, Callable[[random.Random], str]] = {
    "prose": prose,
    "capitals": lambda rng: prose(rng, "abcdeABCDE'"),
    "contractions": lambda rng: "".join(rng.choice(["it's ", "we'll ", "don't", " I'm", "'s", "'", " they've\n"]) for _ in range(300)),
    "accents": lambda rng: prose(rng, "aeioué\u0301\u0308\u0327ñ"),
    "marks": lambda rng: rng.choice("ae") + rng.choice(["\u0301", "\u0308\u0323", "\u0323\u0308"]) * rng.choice([3, 700]),
    "jamo": lambda rng: "".join(rng.choice("ᄀᄂᄃ") + rng.choice("ᅡᅢ") + rng.choice(["", "ᆨ"]) for _ in range(200)),
    "han": lambda rng: "".join(rng.choice("的一是不了人我在有他这") for _ in range(400)),
    "emoji": lambda rng: "".join(rng.choice(["👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "☺️", " "]) for _ in range(150)),
    "thai": lambda rng: "".join(rng.choice("กขคงจะาิีุู") for _ in range(300)),
    "right to left": lambda rng: prose(rng, "אבגדהوزحط"),
    "one letter": lambda rng: "a",
    "no spaces": lambda rng: "".join(rng.choice("abcdefgh") for _ in range(rng.choice([7, 1000]))),
    "spaces": lambda rng: rng.choice([" ", "\n", "\t", "  \n", "\u00a0", "\u3000", " \r\n"]),
    "words and wide gaps": lambda rng: prose(rng, "abc", " ") + " " * 5000,
    "digits": lambda rng: "".join(rng.choice("0123456789") for _ in range(500)) + rng.choice(["", " "]),
    "marks of punctuation": lambda rng: "".join(rng.choice("!?.,;:-_()#%&*") for _ in range(300)),
    "removed": lambda rng: rng.choice(["\x01", "\u200b", "\ufffd", "\x00\x7f"]),
    "unknown": lambda rng: rng.choice(["𝄞", "☃", "ж"]),
    "special tokens": lambda rng: prose(rng, "abcd") + rng.choice(SPECIALS + ["[SEP", "mark>", " <mark> ", "x<mark>x", "[CLS][SEP]"]),
    "many special tokens": lambda rng: rng.choice(["[SEP]", "<mark> ", " <mark>", "[CLS] [SEP]"]),
    "lines": lambda rng: "".join(f"line {rng.randrange(1000)}\n" for _ in range(100)),
}

# Styles of short words with gaps between them, of which each tokenizer with words can be cut.
PLAIN = {"prose", "capitals", "right to left", "lines"}


def draw_text(rng: random.Random, limit: int) -> tuple[str, list[tuple[str, int]], str]:
    """A text of one to three styles, which is longer than a limit, the styles with their bytes, and words that describe it."""
    longest = limit + 60_000
    size = rng.choice([limit + 1, limit + 1, rng.randint(limit, longest), longest])
    parts, styles, said = [], [], []
    count = rng.choice([1, 1, 2, 2, 3])
    shares = [rng.choice([0.001, 0.3, 1, 5]) for _ in range(count)]
    for share in shares:
        style = rng.choice(list(STYLES))
        pieces = [STYLES[style](rng) for _ in range(2)]
        least = size * share / sum(shares)
        mean = sum(len(piece.encode()) for piece in pieces) / 2
        parts.append("".join(rng.choices(pieces, k=max(1, int(least / mean) + 1))))
        styles.append((style, len(parts[-1].encode())))
        said.append(f"{style} ({styles[-1][1]} bytes, from {pieces[0][:12]!r})")
    return "".join(parts), styles, ", ".join(said)


def byte_level(rng: random.Random, sample: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=rng.random() < 0.3))
    first = rng.random() < 0.3
    if rng.random() < 0.5:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=first)
    else:
        pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=first, use_regex=False)])
    if rng.random() < 0.4:
        tokenizer.normalizer = rng.choice([normalizers.NFC(), normalizers.NFKC()])
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=SPECIALS)
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def word_piece(rng: random.Random, sample: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=rng.choice([100, 100, 5])))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=rng.random() < 0.5, strip_accents=rng.choice([None, True, False]), handle_chinese_chars=rng.random() < 0.8)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(sample, trainers.WordPieceTrainer(vocab_size=250, show_progress=False, special_tokens=SPECIALS))
    return tokenizer


def unigram(rng: random.Random, sample: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    steps: list[Any] = [normalizers.NFKC()] if rng.random() < 0.5 else []
    if rng.random() < 0.4:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if rng.random() < 0.3:
        steps.append(normalizers.Strip(left=rng.random() < 0.5, right=True))
    if rng.random() < 0.2:
        steps += [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    else:
        tokenizer.pre_tokenizer = rng.choice([
            pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        ])
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.train_from_iterator(sample, trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", show_progress=False, special_tokens=SPECIALS))
    return tokenizer


def whole_words(rng: random.Random, sample: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = rng.choice([
        pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit()]), pre_tokenizers.CharDelimiterSplit("e"), pre_tokenizers.Split("\n", "removed"),
        pre_tokenizers.Split(Regex(r"\n+"), "merged_with_previous"), pre_tokenizers.UnicodeScripts(),
    ])
    if rng.random() < 0.4:
        tokenizer.normalizer = rng.choice([normalizers.Lowercase(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.train_from_iterator(sample, trainers.WordLevelTrainer(vocab_size=200, show_progress=False, special_tokens=SPECIALS))
    return tokenizer


def characters(rng: random.Random, sample: list[str]) -> Tokenizer:
    """BPE without a byte level, whose unknown characters may be fused or fall back to bytes."""
    falls = rng.random() < 0.3
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=rng.random() < 0.6, byte_fallback=falls))
    if rng.random() < 0.7:
        tokenizer.pre_tokenizer = rng.choice([pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = SPECIALS + [f"<0x{byte:02X}>" for byte in range(256)] if falls else SPECIALS
    tokenizer.train_from_iterator([text[:300] for text in sample], trainers.BpeTrainer(vocab_size=len(specials) + 60, show_progress=False, special_tokens=SPECIALS))
    if falls:
        # The tokens of bytes belong to the vocabulary, not to the special ones.
        made = json.loads(tokenizer.to_str())
        for name in specials[len(SPECIALS):]:
            made["model"]["vocab"].setdefault(name, len(made["model"]["vocab"]))
        tokenizer = Tokenizer.from_str(json.dumps(made))
    return tokenizer


KINDS: dict[str, Callable[[random.Random, list[str]], Tokenizer]] = {"byte-level BPE": byte_level, "WordPiece": word_piece, "Unigram": unigram, "whole words": whole_words, "BPE of characters": characters}


def draw_tokenizer(rng: random.Random, kind: str, text: str) -> Tokenizer:
    """A tokenizer of a kind, trained on parts of the text and on prose."""
    places = [rng.randrange(len(text)) for _ in range(4)]
    sample = [prose(rng)[:800], "it's 123 456!", *(text[place:place + 200] for place in places)]
    tokenizer = KINDS[kind](rng, sample)
    if rng.random() < 0.3:
        tokenizer.add_special_tokens([AddedToken("<mark>", lstrip=rng.random() < 0.5, rstrip=rng.random() < 0.5, single_word=rng.random() < 0.3, normalized=rng.random() < 0.3)])
    if rng.random() < 0.2:
        tokenizer.add_tokens([AddedToken("abc", single_word=rng.random() < 0.5), AddedToken("aaaaaaa")])
    if rng.random() < 0.6:
        cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
        form = rng.choice(["[CLS] $A [SEP]", "[CLS] $A", "$A [SEP]"])
        tokenizer.post_processor = processors.TemplateProcessing(single=form, special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
    return tokenizer


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choice(list(KINDS))
    variant.tags.append(kind)
    memory_mib = rng.choice([256, 256, 256, 300, 1024])
    text, styles, said = draw_text(rng, LIMIT)
    tokenizer = draw_tokenizer(rng, kind, text)
    side = rng.choice(["right", "right", "left"])
    most = rng.choice([3, 8, 128, 128, 512, 512, 2048, 20_000, 200_000, None])
    params: dict[str, Any] = {"truncation_side": side}
    if most is not None:
        params["max_length"] = most
        if rng.random() < 0.2:
            params |= {"pad": True, "pad_token": "[PAD]", "padding_side": rng.choice(["left", "right"])}
    special = rng.random() < 0.8
    params["add_special_tokens"] = special
    texts = [text, text[: rng.choice([100, 3000])]]
    kept = [True, True]
    if rng.random() < 0.25:
        kept = draw_filter(rng, params, texts)
    folder = variant.folder("d")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "texts.ndjson").write_text("".join(json.dumps({"id": number, "text": one}, ensure_ascii=False) + "\n" for number, one in enumerate(texts)), newline="")
    variant.note(f"{kind}, text: {said}; {len(text)} characters, {len(text.encode())} bytes")
    whole = [tokenizer.encode(one, add_special_tokens=False) for one in texts]
    added = tokenizer.num_special_tokens_to_add(False) if special else 0
    counts = [len(encoding.ids) + added for encoding in whole]
    variant.note(f"tokens of the whole texts: {counts}")
    expected = [cut(tokenizer, encoding, most, side, special, params) for encoding in whole]
    stage = {"module": "std/text", "params": params, "assets": {"tokenizer": {"store": "d", "key": "tokenizer.json"}}, "deadline_ms": 60000, "memory_mib": memory_mib}
    outcome = variant.run(collated({"records": {"store": "d", "key": "texts.ndjson"}}, 1, stages=[{"wasm": stage}], max_failures=None), {"d": folder}, "--out", str(variant.place / "kept"))
    sure = most is not None and is_certain(tokenizer, styles[0] if side == "right" else styles[-1], most)
    judge(variant, kind, outcome, texts, expected, kept, counts, most, side, LIMIT * memory_mib // 256, sure)


def is_certain(tokenizer: Tokenizer, end: tuple[str, int], most: int) -> bool:
    """True if the end of a text that stays has many more short words than its tokens need."""
    style, size = end
    steps = json.loads(tokenizer.to_str())["pre_tokenizer"] or {"type": None}
    steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    has_words = any(step["type"] in ("ByteLevel", "BertPreTokenizer", "Whitespace", "WhitespaceSplit") or step["type"] == "Metaspace" and step["split"] for step in steps)
    return has_words and style in PLAIN and 50 * (most + 50) < min(size, LIMIT / 2)


def cut(tokenizer: Tokenizer, whole: Any, most: int | None, side: str, special: bool, params: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Ids and mask of the tokens of a whole text, truncated and padded by `tokenizers`."""
    if most is not None:
        tokenizer.enable_truncation(most, direction=side)
    done = tokenizer.post_process(whole, add_special_tokens=special)
    tokenizer.no_truncation()
    ids, mask = list(done.ids), [1] * len(done.ids)
    if params.get("pad") and most is not None:
        lack = most - len(ids)
        fill = [tokenizer.token_to_id("[PAD]")] * lack
        ids, mask = (fill + ids, [0] * lack + mask) if params["padding_side"] == "left" else (ids + fill, mask + [0] * lack)
    return ids, mask


def draw_filter(rng: random.Random, params: dict[str, Any], texts: list[str]) -> list[bool]:
    """Adds a filter, which looks at whole texts: which of them are kept."""
    kind = rng.choice(["min_chars", "max_chars", "contains", "lacks", "min_letters", "max_repeated_lines"])
    if kind in ("min_chars", "max_chars"):
        params[kind] = rng.choice([len(texts[0]) - 1, len(texts[0]), len(texts[0]) + 1])
        return [len(one) >= params[kind] if kind == "min_chars" else len(one) <= params[kind] for one in texts]
    if kind in ("contains", "lacks"):
        texts[0] += "QQendQQ"
        params[kind] = rng.choice(["QQend", "QQ$"])
        return [("QQend" in one) == (kind == "contains") for one in texts]
    if kind == "min_letters":
        # Shares near the middle alone, since kinds of letters are a matter of definition.
        shares = [letters(one) for one in texts]
        params[kind] = 0.5
        if all(share is not None and abs(share - 0.5) > 0.1 for share in shares):
            return [share >= 0.5 for share in shares]
        del params[kind]
        return [True, True]
    params[kind] = 0.5
    shares = []
    for one in texts:
        lines = [line for line in one.split("\n") if line.strip()]
        shares.append((len(lines) - len(set(lines))) / len(lines) if lines else 0)
    if any(abs(share - 0.5) < 0.1 for share in shares) or any(re.search("[\r\v\f\x1c-\x1e\x85\u2028\u2029]", one) for one in texts):
        del params[kind]
        return [True, True]
    return [share <= 0.5 for share in shares]


def letters(text: str) -> float | None:
    """Share of letters among the characters that are not white space; `None` if there are none."""
    seen = [character for character in text if not character.isspace()]
    return sum(character.isalpha() for character in seen) / len(seen) if seen else None


def judge(
    variant: Variant, kind: str, outcome: Any, texts: list[str], expected: list[tuple[list[int], list[int]]], kept: list[bool], counts: list[int], most: int | None, side: str,
    max_bytes: int, sure: bool,
) -> None:
    """Compares the tokens of each text, and the counters."""
    if outcome.code == 2:
        variant.differ("the document is refused", "a run", outcome.errors)
        return
    found = {int(sample.fields["id"]): sample for sample in outcome.samples}
    errors = variant.place / "kept" / "errors.ndjson"
    messages = " ".join(json.loads(line)["message"] for line in errors.read_text().splitlines()) if errors.exists() else ""
    sizes = [len(text.encode()) for text in texts]
    for number, (ids, mask) in enumerate(expected):
        length = "long" if sizes[number] > max_bytes else "long, within the memory," if sizes[number] > LIMIT else "short"
        place = f"{length} text, {'without max_length' if most is None else side}"
        if number not in found:
            if not kept[number]:
                continue
            # Words of more than 500,000 bytes fail with any memory.
            may_fail = sizes[number] > LIMIT and not sure and messages
            if not may_fail:
                variant.differ(f"{place}: {'fails' if messages else 'is missing'}", f"{len(ids)} tokens", messages or outcome.errors)
            elif length == "long" and not re.search("max_length|memory_mib|split it first", messages):
                variant.differ(f"{place}: the message names no way out", "max_length, memory_mib or another stage", messages)
            else:
                variant.tags.append(f"{place}: refused")
            continue
        if not kept[number]:
            variant.differ(f"{place}: a filter keeps it", "a dropped text", found[number].fields["input_ids"].shape)
            continue
        if length == "long" and most is None:
            variant.differ(f"{place}: passes", f"a failure beyond {max_bytes} bytes", f"{sizes[number]} bytes")
        tokens = found[number].fields["input_ids"].tolist()
        if tokens != ids:
            first = next((at for at, (one, other) in enumerate(zip(tokens, ids)) if one != other), min(len(tokens), len(ids)))
            variant.differ(f"{place}, {kind}: tokens", f"{len(ids)} tokens, at {first}: {ids[first:first + 6]}", f"{len(tokens)} tokens, at {first}: {tokens[first:first + 6]}")
        elif found[number].fields["attention_mask"].tolist() != mask:
            variant.differ(f"{place}, {kind}: mask", mask[:20], found[number].fields["attention_mask"].tolist()[:20])
    if len(found) == 2 and most is not None:
        right = sum(count > most for count in counts)
        if counted(outcome, "truncated") != right:
            variant.differ(f"the counter `truncated`, {side}", right, counted(outcome, "truncated"))
    if len(found) == 2:
        # With more memory, a text may be split whole.
        least, largest = (sum(size > bound for size in sizes) if most is not None else 0 for bound in (max_bytes, LIMIT))
        if not least <= counted(outcome, "cut") <= largest:
            variant.differ(f"the counter `cut`, {side}", f"{least} to {largest}", counted(outcome, "cut"))


if __name__ == "__main__":
    main("long texts", make)
