"""Templates of names, alone and together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramtool.dialects.template import Template, Templates

TEXTS = (
    "layers.{layer}.q_proj.{kind}",
    "layers.{layer}.{rest}",
    "{path}.q_proj.{kind}",
    "layers.0.q_proj.weight",
    "h{n}.experts.{expert}.w1.weight",
    "{path}.norm{n}.{path}",
)
WORDS = st.sampled_from(
    ["layers", "q_proj", "weight", "bias", "experts", "w1", "0", "12", "h3", "norm7", "é", "\ud800"]
)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(st.sampled_from(TEXTS), max_size=4))
def test_templates_together_are_those_alone(words: list[str], texts: list[str]) -> None:
    """What is asked once for names that differ in numbers is what each template says of each name."""
    name, templates = ".".join(words), [Template(text) for text in texts]
    alone = [(k, fields) for k, one in enumerate(templates) if (fields := one.match(name)) is not None]
    together = Templates(templates)
    for _ in range(2):
        assert list(together.matches(name)) == alone
        assert together.match(name) == (alone[0] if alone else None)
