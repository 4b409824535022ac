"""Tensors that libraries store beside the weights of a recurrent network, or instead of them: one row for each.

A wrapper such as weight norm replaces `weight_hh_l0` by tensors that it is computed from.  A conversion that ignored
them would keep the network's shapes and change its function.  So each such tensor is read as its library reads it
(`taken`), recognised as not needed by the function (`harmless`), or refused with a hint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

TAKEN = "taken"
HARMLESS = "harmless"
REFUSED = "refused"


@dataclass(frozen=True)
class Extra:
    """Names of tensors that belong to a tensor `{own}` of a network, or to the whole network."""

    names: tuple[str, ...]
    """Templates: `{own}_g`.  `{n}` is a number and `{any}` anything, as in `seed_generator/{any}`."""
    what: str
    """What such a tensor is, for messages."""
    then: str
    """TAKEN, HARMLESS or REFUSED."""
    hint: str = ""
    """What to do if it is refused."""
    source: str = ""

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of the full names, with the groups `at` (the module) and `own` (if it belongs to one tensor)."""
        return tuple(re.compile(_pattern(name), re.DOTALL) for name in self.names)

    def read(self, name: str) -> tuple[str, str] | None:
        """(module, name of the tensor it belongs to, or empty) if a name matches this row; else None.

        >>> EXTRAS[1].read("encoder.rnn.weight_hh_l0_g")
        ('encoder.rnn', 'weight_hh_l0')
        """
        for pattern in self.patterns:
            if found := pattern.fullmatch(name):
                return found["at"] or "", found.groupdict().get("own") or ""
        return None


def _pattern(template: str) -> str:
    text = re.escape(template).replace("/", "[./]")
    text = text.replace(r"\{own\}", "(?P<own>[^./]+)").replace(r"\{n\}", r"\d+").replace(r"\{any\}", ".+")
    return rf"(?:(?P<at>.+?)[./])??{text}"


EXTRAS = (
    Extra(
        ("{own}_raw",),
        "the weight before weight dropout (AWD-LSTM)",
        TAKEN,
        source="salesforce/awd-lstm-lm weight_drop.py, fastai/text/models/awdlstm.py (WeightDropout), "
        "torchnlp/nn/weight_drop.py: without dropout the raw weight is used; the other was drawn in the last step",
    ),
    Extra(
        ("{own}_g", "{own}_v"),
        "the magnitude or the direction of a weight under weight norm",
        REFUSED,
        "torch.nn.utils.remove_weight_norm(module, 'NAME') computes the weight; save the model after it",
        "torch/nn/utils/weight_norm.py (2.13.0)",
    ),
    Extra(
        ("{own}_orig", "{own}_mask"),
        "a weight before pruning, or its mask",
        REFUSED,
        "torch.nn.utils.prune.remove(module, 'NAME') computes the weight; save the model after it",
        "torch/nn/utils/prune.py (2.13.0)",
    ),
    Extra(
        ("{own}_orig", "{own}_u", "{own}_v"),
        "a weight under spectral norm, or one of its vectors",
        REFUSED,
        "torch.nn.utils.remove_spectral_norm(module, 'NAME') computes the weight; save the model after it",
        "torch/nn/utils/spectral_norm.py (2.13.0)",
    ),
    Extra(
        ("parametrizations.{own}.original", "parametrizations.{own}.original{n}", "parametrizations.{own}.{n}.{any}"),
        "a tensor that a parametrized weight is computed from",
        REFUSED,
        "torch.nn.utils.parametrize.remove_parametrizations(module, 'NAME') computes the weight; "
        "save the model after it",
        "torch/nn/utils/parametrize.py (2.13.0)",
    ),
    Extra(
        ("seed_generator/{any}",),
        "the state of the generator that dropout draws from",
        HARMLESS,
        source="keras/src/layers/rnn/dropout_rnn_cell.py, keras/src/random/seed_generator.py (3.15.1)",
    ),
)
