"""The notebook of the examples, executed by Jupyter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_client.manager import start_new_kernel
from photos import ROOT, colored, modules

NOTEBOOK = ROOT / "examples/train/notebook.ipynb"
# Maximum time of the notebook, in seconds; it compiles two modules.
PATIENCE = 300

# Cell with a loop whose first batch takes a minute.
SLOW = """
import penstock

document = {
    "name": "slow",
    "source": {"range": {"count": 10}},
    "stages": [{"sleep": {"mean_ms": 60_000, "on": "async"}}, {"aggregate": {"size": 1}}, {"collate": {}}],
}
for batch in penstock.watch(penstock.Pipeline(document)):
    pass
"""


def executed() -> dict[str, Any]:
    """Executes the notebook in a copy of the repository's folders and returns it with its outputs."""
    with tempfile.TemporaryDirectory() as root:
        here = Path(root, "examples/train")
        here.mkdir(parents=True)
        for name in (NOTEBOOK.name, "photos.json"):
            shutil.copy(NOTEBOOK.with_name(name), here)
        colored(Path(root, "demo/photos"), [f"{number:06}.jpg" for number in range(192)])
        guests = Path(root, "target/wasm32-unknown-unknown/guest")
        guests.parent.mkdir(parents=True)
        guests.symlink_to(modules())
        command = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook", "--output", "executed", str(here / NOTEBOOK.name)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert finished.returncode == 0, finished.stderr
        return dict(json.loads((here / "executed.ipynb").read_text()))


class Notebook(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        # A kernel installed by the user would otherwise run instead of that of the tested environment.
        empty = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.enterClassContext(mock.patch.dict(os.environ, {"JUPYTER_DATA_DIR": empty, "JUPYTER_PATH": empty}))

    def test_it_has_no_outputs_in_the_repository(self) -> None:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            self.assertEqual((cell.get("outputs", []), cell.get("execution_count")), ([], None))

    def test_it_shows_parts_progress_verdict_chart_and_headspace(self) -> None:
        outputs = {cell["id"]: cell["outputs"] for cell in executed()["cells"] if cell["cell_type"] == "code"}
        kinds = {name: [output["output_type"] for output in each] for name, each in outputs.items()}
        self.assertEqual(
            kinds,
            {
                "pipeline": ["execute_result"],
                "loop": ["display_data", "stream"],
                "after": ["execute_result"],
                "verdict": ["stream"],
                "headspace": ["stream"],
            },
        )
        parts, (live, printed), after = self.html(outputs["pipeline"][0]), outputs["loop"], self.html(outputs["after"][0])
        self.assertIn("module std/image", parts)
        self.assertNotIn("<svg", parts)
        # The notebook contains one view, which shows its last state.
        self.assertIn("train-photos completed", self.html(live))
        self.assertIn("192 samples in 12 batches", self.html(live))
        self.assertEqual(self.html(live).count("<svg"), 2)
        self.assertIn("12 batches; mean [", "".join(printed["text"]))
        (chart,) = re.findall("<svg.*?</svg>", after)
        self.assertEqual(re.findall("<g><title>(.*?):", chart), ["0", "1", "2", "3", "4", "5", "6"])
        # The view has the sentence of the verdict, without the evidence.
        verdict = "".join(outputs["verdict"][0]["text"]).splitlines()[0]
        self.assertGreater(len(verdict), 20)
        self.assertIn(re.sub("`([^`]+)`", r"<code>\1</code>", verdict), after)
        self.assertRegex("".join(outputs["headspace"][0]["text"]), r"the consumer takes [\d.,]+ items/s")

    def test_an_interrupt_of_the_kernel_ends_the_run_and_leaves_the_view(self) -> None:
        kernel, client = start_new_kernel()
        self.addCleanup(kernel.shutdown_kernel, now=True)
        self.addCleanup(client.stop_channels)
        cell = client.execute(SLOW)
        views, error = [], None
        while True:
            message = client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != cell and message["msg_type"] != "update_display_data":
                continue
            match message["msg_type"]:
                case "update_display_data":
                    views.append(message["content"]["data"]["text/html"])
                    if len(views) == 1:
                        kernel.interrupt_kernel()
                case "error":
                    error = message["content"]["ename"]
                case "status" if message["content"]["execution_state"] == "idle":
                    break
        self.assertEqual(error, "KeyboardInterrupt")
        self.assertIn("slow running", views[0])
        self.assertIn("slow stopped", views[-1])

    @staticmethod
    def html(output: dict[str, Any]) -> str:
        return "".join(output["data"]["text/html"])


if __name__ == "__main__":
    unittest.main()
