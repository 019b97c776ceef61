import unittest

import penstock_guest
import stage  # noqa: F401
from penstock_guest import Item


def run(content, **params):
    return penstock_guest.instance(params).process(Item("a.txt", {"bytes": content}))


class FirstWords(unittest.TestCase):
    def test_a_long_text_is_cut_and_counted(self):
        penstock_guest.counters.clear()
        self.assertEqual(run(b"one  two\nthree", words=2), {"text": "one two", "words": 2})
        self.assertEqual(penstock_guest.counters, {"cut": 1})

    def test_a_file_without_words_is_dropped(self):
        self.assertIsNone(run(b" \n"))

    def test_a_file_that_is_not_text_is_refused(self):
        self.assertRaises(UnicodeDecodeError, run, b"\xff\xd8")


if __name__ == "__main__":
    unittest.main()
