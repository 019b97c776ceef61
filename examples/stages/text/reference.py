"""Makes the fixtures of this stage's tests with the library `tokenizers`, or the same for more lines.

    python examples/stages/text/reference.py
    python examples/stages/text/reference.py --lines 10000 --to target/text
    PENSTOCK_TEXT_DATA=target/text cargo test -p text

Trains a byte-level BPE, a WordPiece and a Unigram model on lines of several scripts, and writes the models, the lines, and the ids of each
line: whole, and truncated and padded to 16 tokens.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyzäöüßéñçøœžłđ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "greek": "αβγδεζηθικλμνξοπρστυφχψως",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढतथदधनपफबभमयरलवशषसहािीुूेैोौ्ं",
    "thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวสหอฮะาิีึืุูเแโใไ่้",
    "hangul": "가나다라마바사아자차카타파하거너더러머버서어저처커터퍼허",
    "han": "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年",
    "kana": "あいうえおかきくけこさしすせそたちつてとなにぬねのアイウエオカキクケコ",
}
ODD = ["🙂", "👩‍👩‍👧", "🇩🇪", "e\u0301", "\u0000", "\u200b", "\ufeff", "\t", "  ", "\u2028", "ﬁ", "Ⅷ", "½", "…", "—", "”", "don't", "1,234.5", "http://a.b/c?d=e", "<s>", "[MASK]"]


def lines(count: int) -> list[str]:
    chance = random.Random(7)
    made = []
    words = {name: ["".join(chance.choices(letters, k=chance.randint(1, 7))) for _ in range(150)] for name, letters in ALPHABETS.items()}
    for _ in range(count):
        script = words[chance.choice(list(words))]
        other = words[chance.choice(list(words))]
        parts = [chance.choice(ODD if chance.random() < 0.1 else other if chance.random() < 0.1 else script) for _ in range(chance.randint(0, 30))]
        line = chance.choice([" ", " ", " ", ""]).join(parts)
        made.append(chance.choice([line, line.title(), line.upper()]) + chance.choice(["", ".", "!", "?\n", "..."]))
    return made


def trained() -> dict[str, Tokenizer]:
    text = lines(3000)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|pad|>"]
    bpe.train_from_iterator(text, trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    wordpiece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer()
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    wordpiece.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False))
    wordpiece.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    unigram.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=1200, special_tokens=special, unk_token="<unk>", show_progress=False))
    unigram.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    return {"bpe": bpe, "wordpiece": wordpiece, "unigram": unigram}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=150, help="number of lines (150)")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "tests/data", help="folder")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    text = lines(3000 + arguments.lines)[3000:]
    found = {"lines": text}
    pads = {"bpe": "<|pad|>", "wordpiece": "[PAD]", "unigram": "<pad>"}
    for name, tokenizer in trained().items():
        (arguments.to / f"{name}.json").write_text(tokenizer.to_str() + "\n")
        whole = [encoding.ids for encoding in tokenizer.encode_batch(text)]
        tokenizer.enable_truncation(16)
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id(pads[name]), pad_token=pads[name], length=16)
        found[name] = {"whole": whole, "padded": [encoding.ids for encoding in tokenizer.encode_batch(text)]}
    (arguments.to / "expected.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
