"""Golden guest of the tests: each sample names what the stage does."""

import datetime
import logging
import os
import random
import sys
import time

from penstock_guest import Tensor, asset, count, stage


def helper(text):
    raise ValueError(f"no number in {text!r}")


def deep(n):
    return n and deep(n - 1) + 1


@stage(wants=["text"], makes=["text", "random", "tensor"], counters=["calls"], params={"times": {"type": "integer", "default": 2}})
def golden(item, params):
    """Does what the field `text` says."""
    word = item["text"]
    count("calls")
    match word:
        case "print":
            print("to stdout\nand more", end="")
            print("to stderr", file=sys.stderr)
            logging.warning("by logging")
        case "raise":
            helper(word)
        case "loop":
            while True:
                pass
        case "import":
            import colorsys
            item["text"] = str(colorsys)
        case "random":
            item["random"] = f"{random.random():.6f} {item.random.random():.6f}"
        case "clock":
            item["text"] = str(time.time())
        case "now":
            item["text"] = str(datetime.datetime.now())
        case "sleep":
            time.sleep(0.1)
        case "file":
            open("/etc/passwd").read()
        case "list":
            os.listdir("/")
        case "entropy":
            os.urandom(4)
        case "system-random":
            random.SystemRandom().random()
        case "deep":
            deep(100_000)
        case "exit":
            sys.exit(3)
        case "memory":
            item["text"] = "x" * (1 << 30)
        case "type":
            item["text"] = {1}
        case "big":
            item["text"] = 1 << 70
        case "tensor":
            item["tensor"] = Tensor.of("float32", [2, 2], [1.0, 2.0, 3.0, params["times"]])
        case "drop":
            return None
        case "wrong":
            return 7
        case "asset":
            asset("words")
    return item
