"""Modules of the program need no file."""

import json
import unittest
from typing import Any

import penstock
from kit import module, photos


def document(name: str) -> dict[str, Any]:
    return {
        "source": {"list": {"store": "photos", "suffix": ".jpg", "limit": 8}},
        "stages": [{"fetch": {}}, {"wasm": {"module": name}}, {"aggregate": {"size": 4}}, {"collate": {}}],
    }


class ModulesOfTheProgram(unittest.TestCase):
    def test_a_module_of_the_program_is_named_without_a_file(self) -> None:
        pipeline = penstock.Pipeline(document("std/image"), stores={"photos": photos()})
        batches = [batch["image"].shape[0] for batch in pipeline]
        self.assertEqual(batches, [4, 4])
        self.assertEqual(list(json.loads(json.dumps(pipeline.stats()))["modules"]), ["2:image"])

    def test_names_of_the_program_are_suggested_and_cannot_be_given_to_other_modules(self) -> None:
        with self.assertRaisesRegex(penstock.InvalidPipeline, "did you mean `std/image`") as raised:
            penstock.Pipeline(document("std/imgae"), stores={"photos": photos()})
        self.assertNotIn("modules=", str(raised.exception))
        with self.assertRaisesRegex(penstock.InvalidPipeline, "names that start with `std/` belong to the modules of the program"):
            modules = {"std/image": module("text-filter")}
            penstock.Pipeline(document("std/image"), stores={"photos": photos()}, modules=modules)


if __name__ == "__main__":
    unittest.main()
