"""What the policy is sampled with."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.settings.section import Section

OF_LOCAL = ("cache_gib", "chunk_tokens", "at_publication_keys")
OF_VLLM = ("served_name", "folder", "route", "api_key_env", "reply_s", "publish_s")


class EngineConfig(Section):
    """What samples: the engine of this process, or vLLM servers that run already."""

    kind: Literal["local", "vllm"] = Field(
        default="local", description="local: the engine of this process; vllm: servers that run already"
    )
    max_running: int | None = Field(
        default=None,
        ge=1,
        description="replies that are sampled at a time, by each server of several; unset: all, or 256 by a server",
    )
    cache_gib: float | None = Field(
        default=None,
        gt=0,
        description="local: the most that keys and values may take; unset: a quarter of the memory there is",
    )
    chunk_tokens: int = Field(
        default=2048, ge=1, description="local: new context that is computed in a step, beside what is sampled"
    )
    at_publication_keys: Literal["drop", "keep"] = Field(
        default="drop",
        description="local: keys of conversations that go on over a publication are computed anew, or kept as they are",
    )
    servers: tuple[str, ...] = Field(default=(), description="vllm: addresses, such as http://127.0.0.1:8000")
    served_name: str = Field(default="", description="vllm: of the model at the servers; empty: model.name")
    folder: str = Field(
        default="", description="vllm: that the servers read too, for the weights; empty: in memory of this machine"
    )
    route: Literal["transfer", "reload"] = Field(
        default="transfer", description="vllm: how weights reach a server; reload is for those without our extension"
    )
    api_key_env: str = Field(
        default="VLLM_API_KEY", min_length=1, description="vllm: environment variable with the key of the servers"
    )
    reply_s: float = Field(
        default=1800.0, gt=0, description="vllm: seconds for a reply, its retries and the wait for a server included"
    )
    publish_s: float = Field(default=600.0, gt=0, description="vllm: seconds for each part of a publication")

    @model_validator(mode="after")
    def _settings_are_of_the_kind(self) -> Self:
        others, wanted = ((*OF_VLLM, "servers"), "vllm") if self.kind == "local" else (OF_LOCAL, "local")
        for name in others:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                said = ",".join(value) if name == "servers" else value
                raise ValueError(f"{name} {said} with kind {self.kind}; leave it out, or set kind to {wanted}")
        if self.kind == "vllm" and not self.servers:
            raise ValueError("kind vllm without servers; set servers to their addresses, such as http://127.0.0.1:8000")
        return self
