"""How a model's conversations are written: the options ``--renderer`` and ``--today`` as the settings that they are."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from agentrl.cli import BadInput
from agentrl.config import HuggingFaceConfig

_FIELDS = HuggingFaceConfig.model_fields
NAMES = (_FIELDS["renderer"].description or "").partition(": ")[2]
"""What the setting takes."""

RendererName = Annotated[
    str | None,
    typer.Option(
        "--renderer",
        metavar="NAME",
        help=f"Of a Hugging Face model, what writes its conversations, as hf.renderer: {NAMES}. A base model without a "
        "chat template needs one.",
    ),
]
Today = Annotated[
    str | None, typer.Option("--today", metavar="DATE", help="The date that some templates print, as hf.today.")
]


def writing(renderer: str | None, today: str | None) -> dict[str, str]:
    """Those of the two that were given, by the names of their settings.

    Raises:
        BadInput: a name that is none, or a text that is no date.
    """
    remedies = {"renderer": f"write {NAMES}", "today": "write a date such as 2026-01-31"}
    given = {name: text for name, text in (("renderer", renderer), ("today", today)) if text is not None}
    for name, text in given.items():
        try:
            HuggingFaceConfig.model_validate({name: text})
        except ValidationError as error:
            raise BadInput(f"--{name} {text}: {remedies[name]}") from error
    return given
