"""The HTML around a summary. What models wrote travels as JSON only, and the page's script sets it as text, never as markup."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from string import Template
from typing import Any

from selfplay.report.compare import charts


def run_page(summary: Mapping[str, Any]) -> str:
    """The page of one run.

    Args:
        summary: from `summarised`.
    """
    return _page(
        f"{summary['name']}: lora-evo run", "run", summary, ("charts.js", "frame.js", "shapes.js", "problems.js", "run.js")
    )


def comparison_page(comparison: Mapping[str, Any]) -> str:
    """The page that lays runs over each other.

    Args:
        comparison: from `compared`.
    """
    title = f"{len(comparison['runs'])} runs compared: lora-evo"
    return _page(title, "compare", {**comparison, "charts": charts()}, ("charts.js", "frame.js", "compare.js"))


def exam_page(results: Mapping[str, Any]) -> str:
    """The page of an exam.

    Args:
        results: from `selfplay.exams.table.results`.
    """
    return _page(f"exam on {results['exam']['base']['name']}: lora-evo", "exam", results, ("charts.js", "frame.js", "exam.js"))


def embedded(data: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII only, so no separators and no lone surrogates either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(title: str, kind: str, data: Any, scripts: Sequence[str]) -> str:
    script = "\n".join(_file(name) for name in scripts)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    shown = escape(title.encode("utf-8", "replace").decode())
    return Template(_file("page.html")).substitute(
        title=shown,
        kind=kind,
        style=_file("style.css"),
        script=script,
        data=embedded(data),
        hash=f"sha256-{digest}",
        version=escape(_version()),
    )


def _file(name: str) -> str:
    return (files("selfplay.report") / name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("lora-evo")
    except PackageNotFoundError:
        return ""
