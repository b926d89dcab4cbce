"""What the documentation shows runs as it stands there, and names what exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from adapters import hand_folder

import lora_evo as le
from lora_evo.operators import OPERATORS
from selfplay.engines.torch_engine import TorchEngine

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/new-operator.md", "docs/engine.md"])
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_folder(tmp_path / "lora-a", 1)
    hand_folder(tmp_path / "lora-b", 2)
    monkeypatch.chdir(tmp_path)
    a, b = le.load("lora-a"), le.load("lora-b")
    if page == "README.md":
        engine = TorchEngine("nano", slots=1)
        engine.fresh("s0", 0)
        le.save(engine.adapter("s0"), "student")
    path = next(iter(a.modules))
    (A1, B1, scale1), (A2, B2, scale2) = a.modules[path], b.modules[path]
    names = {"path": path, "A1": A1, "B1": B1, "scale1": scale1, "A2": A2, "B2": B2, "scale2": scale2}
    try:
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S):
            code = block.replace('modules=["*.mlp.*", "!*.layers.0.*"]', f"modules=[{path!r}]")
            exec(compile(code, page, "exec"), names)
    finally:
        OPERATORS.pop("tops", None)


def test_every_operator_has_a_page_and_every_page_an_operator() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "operators").glob("*.md")}
    assert pages == set(le.all_operators())
    for name in pages:
        text = (ROOT / "docs" / "operators" / f"{name}.md").read_text()
        for param in le.all_operators()[name].params:
            assert param.name in text or param.name in ("space", "granularity", "absolute"), f"{name}: {param.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_named_benchmarks_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES) + "\n".join(f.read_text() for f in (ROOT / "lora_evo").rglob("*.py"))
    for name in set(re.findall(r"python -m benchmarks\.(\w+)", text)):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, lora_evo, lora_evo.operators as o; o.all_operators(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
