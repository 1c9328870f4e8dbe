"""Networks, all of one form: features, then a head; linear in all of the papers'."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.errors import ParamError, cause, unknown
from pipeline.models.googlenet import googlenet
from pipeline.models.layers import Dropout, Network, projector, set_generator
from pipeline.models.mobile import efficientnet, mobilenetv2, shufflenet
from pipeline.models.outside import Given, described, network_of, of_arguments, split, with_head
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

__all__ = ["NAMES", "Dropout", "Network", "build", "described", "set_generator"]


def build(model: Model, channels: int, size: int, classes: int, like: Tensor | None = None) -> Network:
    """A new network with PyTorch's default initialisation, drawn from the global generator.

    channels, size: of the images, (B, channels, size, size); `vit_head` takes (B, 192) instead and reads
    neither. like: samples (n, ...) that a paper's network takes; None: such images. Raises ParamError for an
    unknown name, images that are too small, or a width that the network does not let one choose. Layers and
    counts: FCCL+ and RAHFL's code for DEEP but for cnn3_bn, see STACKS for the others.
    """
    if model.paper or isinstance(model, Given):
        samples = torch.zeros(1, channels, size, size) if like is None else like
        if isinstance(model, Given):
            return network_of(model.network, samples, classes)
        return _of_paper(model, samples, classes)
    if model.name in STACKS:
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


def _of_paper(model: Model, like: Tensor, classes: int) -> Network:
    """A network of a paper, by a function of papers/<paper>/models.py. Its arguments are some of `channels`,
    `size`, `shape` (of a sample) and `classes`. It returns a module that gives the representation (B, d), and
    d; two modules, the features and the head; or one module, see `outside.network_of`."""
    where = f"papers/{model.paper}/models.py: {model.name}"
    shape = tuple(like.shape[1:])
    values = {"channels": shape[0], "size": shape[-1], "shape": shape, "classes": classes}
    function = _function(str(model.paper), model.name)
    try:
        made = of_arguments(function, where, values)
    except ParamError:
        raise
    except (Exception, SystemExit) as error:
        raise ParamError(f"{where}: {cause(error)}") from error
    match made:
        case nn.Module():
            network = split(made, like, classes, where)
        case (nn.Module() as features, (nn.Module() | int()) as head):
            network = with_head(features, head, like, classes, where)
        case _:
            expected = "expected a module, or a module and its width or its head"
            raise ParamError(f"{where}: returns {type(made).__name__}, {expected}")
    if model.dropout is not None:
        network.dropout = Dropout(model.dropout)
    if model.projector:
        network.projector = projector(network.width, model.projector)
    return network


def _function(paper: str, name: str) -> Callable:
    """A public function of papers/<paper>/models.py."""
    module = load_module(f"papers.{paper}.models", ROOT / "papers" / paper / "models.py")
    known = {
        key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    if name not in known:
        raise ParamError(f"papers/{paper}/models.py: {unknown('model', name, known)}")
    return getattr(module, name)
