"""The papers' networks, all of one form: features, then a linear head."""

from collections.abc import Callable
from functools import partial

from torch import nn

from pipeline.errors import ParamError, cause, unknown
from pipeline.models.googlenet import googlenet
from pipeline.models.layers import Dropout, Network, projector, set_generator
from pipeline.models.mobile import efficientnet, mobilenetv2, shufflenet
from pipeline.models.resnet import cnn3_bn, resnet
from pipeline.models.small import STACKS, small
from pipeline.schema import ROOT, Model, load_module

DEEP: dict[str, Callable[[int], tuple[nn.Sequential, int]]] = {
    "resnet10": partial(resnet, "resnet10"),
    "resnet12": partial(resnet, "resnet12"),
    "resnet18": partial(resnet, "resnet18"),
    "resnet34": partial(resnet, "resnet34"),
    "efficientnet": efficientnet,
    "mobilenetv2": mobilenetv2,
    "googlenet": googlenet,
    "shufflenet": shufflenet,
    "cnn3_bn": cnn3_bn,
}
NAMES = (*STACKS, *DEEP)
# rates of networks that have dropout; a rate in the parameters replaces them
DROPOUT = {"efficientnet": 0.2}

__all__ = ["NAMES", "Dropout", "Network", "build", "set_generator"]


def build(model: Model, channels: int, size: int, classes: int) -> Network:
    """A new network with PyTorch's default initialisation, drawn from the global generator.

    channels, size: of the images, (B, channels, size, size); `vit_head` takes (B, 192) instead and reads
    neither. Raises ParamError for an unknown name, images that are too small, or a width that the network
    does not let one choose. Layers and counts: FCCL+ and RAHFL's code for DEEP but for cnn3_bn, see STACKS
    for the others.
    """
    if model.paper:
        network = _of_paper(model.paper, model.name)
        try:
            features, width = network(channels, size)
            nn.Sequential(features, nn.Linear(width, classes))
        except (Exception, SystemExit) as error:
            raise ParamError(f"papers/{model.paper}/models.py: {model.name}: {cause(error)}") from error
    elif model.name in STACKS:
        features, width = small(model.name, channels, size, model.features, relu=model.activation == "relu")
    elif model.name in DEEP:
        if model.features is not None or model.activation != "relu":
            raise ParamError(
                f"model {model.name!r}: its representation is fixed, leave out 'features' and 'activation'"
            )
        features, width = DEEP[model.name](channels)
    else:
        raise ParamError(unknown("model", model.name, NAMES))
    dropout = DROPOUT.get(model.name, 0.0) if model.dropout is None else model.dropout
    head = nn.Linear(width, classes)
    return Network(features, head, dropout, projector(width, model.projector) if model.projector else None)


def _of_paper(paper: str, name: str) -> Callable[[int, int], tuple[nn.Module, int]]:
    """A network of a paper: a function of papers/<paper>/models.py that gives, for (channels, size) of
    the images, a module with output (B, width) and the width."""
    module = load_module(f"papers.{paper}.models", ROOT / "papers" / paper / "models.py")
    known = {
        key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    if name not in known:
        raise ParamError(f"papers/{paper}/models.py: {unknown('model', name, known)}")
    return getattr(module, name)
