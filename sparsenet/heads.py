"""How an output layer is trained in one call of a step: see streaming, sampled_head and factored."""

from collections.abc import Collection

import numpy as np

from sparsenet.device import Device
from sparsenet.factored import FactoredHead
from sparsenet.layers.base import Node
from sparsenet.losses import Loss
from sparsenet.sampled_head import SampledHead
from sparsenet.streaming import Head, why_not

AnyHead = Head | SampledHead | FactoredHead


def needs_head(loss: Loss) -> bool:
    """Whether training with the loss is another thing than the plain path does."""
    return loss.sampling is not None or loss.factored


def why_plain(node: Node, loss: Loss, nodes: Collection[Node], dtype: np.dtype, streaming: bool | None) -> str | None:
    """As streaming.why_not. Raises ValueError where the loss cannot be trained on the plain path, and must be."""
    if not needs_head(loss):
        return why_not(node, nodes, dtype, streaming)
    reason = why_not(node, nodes, np.dtype(np.float32), True)
    if reason:
        kind = "sampled" if loss.sampling else "factored"
        raise ValueError(f"a {kind} loss is for a Dense layer used once, with one dense input, got {reason}")
    if loss.sampling:
        loss.sampling.check_outputs(node.units)
    return None


def head_of(node: Node, loss: Loss, device: Device, precision: str) -> AnyHead:
    """What trains an output with that loss. Raises ValueError where the device cannot."""
    kind = SampledHead if loss.sampling else FactoredHead if loss.factored else Head
    return kind(node, loss, device, precision)
