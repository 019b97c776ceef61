"""A stage for Penstock: see README.md. Import everything here, at the top: a running stage has no files."""

from penstock_guest import count, stage


@stage(
    wants=["bytes"],
    makes=["text", "words"],
    removes=["bytes"],
    counters=["cut"],
    params={"words": {"type": "integer", "minimum": 1, "default": 20, "description": "Maximum number of words to keep of each text."}},
)
def first_words(item, params):
    """Keeps the first words of a text file. Drops a file without words; refuses a file that is not text."""
    words = item.pop("bytes").decode().split()
    if not words:
        return None
    kept = words[: params["words"]]
    if len(kept) < len(words):
        count("cut")
    item["text"] = " ".join(kept)
    item["words"] = len(kept)
    return item
