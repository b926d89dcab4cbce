"""Hub ids, from the local cache, without a network."""

import json
from pathlib import Path

import pytest
from adapters import hand_folder

import lora_evo as le

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository in a hub cache, laid out as huggingface_hub lays it out."""
    repo = tmp_path / "hub" / "models--someone--adapter"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    (repo / "snapshots").mkdir()
    hand_folder(repo / "snapshots" / COMMIT, 1)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return "someone/adapter"


def test_a_hub_id_is_read_from_the_cache(cached: str, tmp_path: Path) -> None:
    parent = le.load(cached)
    assert parent.name == cached
    assert parent.modules
    child = le.mutate(parent, "svd_perturb", seed=0)
    le.save(child, tmp_path / "child")
    lineage = le.load(tmp_path / "child").lineage
    assert lineage is not None
    assert lineage.parents[0].name == cached
    assert json.loads((tmp_path / "child" / "adapter_config.json").read_text())["peft_type"] == "LORA"


def test_a_hub_id_that_is_not_cached_says_so_offline(cached: str) -> None:
    with pytest.raises(le.AdapterError, match="someone/other: no such folder, and the hub cannot give it"):
        le.load("someone/other")
