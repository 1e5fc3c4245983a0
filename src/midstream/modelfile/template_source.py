"""Owns the choice of a chat template's text: the operator's, ours, or the model's. Never renders one."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from midstream.errors import ModelFileError
from midstream.modelfile.gguf import GgufFile
from midstream.modelfile.json_file import read_json_if_there
from midstream.modelfile.resolve import ModelFiles, ModelKind

MAX_TEMPLATE_BYTES = 1 << 20
FAMILIES = ("smollm2",)


@dataclass(frozen=True)
class TemplateSource:
    """`tools_text`: the variant that some models ship for requests with tools."""

    text: str
    origin: str
    tools_text: str | None = None


def pick_template(
    files: ModelFiles, gguf: GgufFile | None = None, operator_path: Path | None = None
) -> TemplateSource | None:
    """Return the template to use, or None for a model that has none (it can complete, not chat)."""
    if operator_path is not None:
        return TemplateSource(_read(operator_path), str(operator_path))
    if files.kind is ModelKind.GGUF:
        gguf = gguf or GgufFile.open(files.path)
    own = _own(files, gguf)
    shipped = _shipped(_names(files, gguf))
    # Ours is for a model whose own template cannot show tools.
    if shipped is not None and (own is None or "tools" not in (own.tools_text or own.text)):
        return shipped
    return own


def _own(files: ModelFiles, gguf: GgufFile | None) -> TemplateSource | None:
    if gguf is not None:
        text = gguf.metadata.get("tokenizer.chat_template")
        tools_text = gguf.metadata.get("tokenizer.chat_template.tool_use")
    else:
        text, tools_text = _folder_texts(files.path)
    if not isinstance(text, str):
        return None
    return TemplateSource(text, f"of {files.name}", tools_text if isinstance(tools_text, str) else None)


def _folder_texts(folder: Path) -> tuple[Any, Any]:
    if (folder / "chat_template.jinja").is_file():
        return _read(folder / "chat_template.jinja"), None
    named = read_json_if_there(folder / "tokenizer_config.json").get("chat_template")
    if not isinstance(named, list):
        return named, None
    by_name = {entry.get("name"): entry.get("template") for entry in named if isinstance(entry, dict)}
    return by_name.get("default"), by_name.get("tool_use")


def _names(files: ModelFiles, gguf: GgufFile | None) -> list[str]:
    """What the model calls itself, most telling first."""
    if gguf is not None:
        return [str(gguf.metadata.get(key, "")) for key in ("general.basename", "general.name")]
    return [files.name, str(read_json_if_there(files.path / "config.json").get("_name_or_path", ""))]


def _shipped(names: list[str]) -> TemplateSource | None:
    for family in FAMILIES:
        if any(family in name.lower().replace(" ", "") for name in names):
            text = resources.files(__package__).joinpath("templates", f"{family}.jinja").read_text()
            return TemplateSource(text, f"shipped for {family}")
    return None


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if len(data) > MAX_TEMPLATE_BYTES:
            raise ModelFileError(f"{path} has {len(data)} bytes; a chat template has {MAX_TEMPLATE_BYTES} at most")
        return data.decode()
    except OSError as error:
        raise ModelFileError(f"cannot read the chat template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"the chat template {path} is not UTF-8 (byte {error.start})") from error
