"""The manifest reference matches the CRD files."""

from __future__ import annotations

from tests.repo.scripts import DOCS, load_script


def test_the_reference_is_what_its_generator_writes() -> None:
    module = load_script("generate_api")
    text = (DOCS / "api.md").read_text()
    assert module.updated(text) == text, "run `python docs/generate_api.py`"
    head, tail = "# Plans\n", "# Commands\n"
    assert module.updated(head + module.BEGIN + "old" + module.END + tail) == head + module.updated("") + tail


def test_the_reference_names_every_field_of_the_specification() -> None:
    text = (DOCS / "api.md").read_text()
    for field in ("spec.pools[].maxUnits", "spec.training.optimizer.sparse.l1", "spec.tolerations[].effect"):
        assert f"| `{field}` |" in text
    assert "| `spec.training.globalBatchSize` | 1 to 16777216 | **required** |" in text
