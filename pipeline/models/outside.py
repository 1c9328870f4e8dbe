"""Networks that were not written for FedRepro: any module is split into features and head."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import ParamError, cause
from pipeline.models.layers import Dropout, Network
from pipeline.schema import Model

# Samples on which it is tried whether a network is head(features(x)).
TRIED = 2
# by which the two may differ, as sums of other lengths may round differently
CLOSE = 1e-4
# A network, or what makes one: a class, or a function without arguments.
Outside = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Given(Model):
    """What stands for such a network where the papers' networks have their names and widths."""

    network: Any = None


def described(model: Any) -> Model:
    """A model itself; a `Given` for a module, or for a function that makes one. ParamError for anything
    else."""
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module) or callable(model):
        return Given(name_of(model), network=model)
    raise ParamError(f"{model!r:.80} is no network: give a module of torch.nn, what makes one, or a Model")


def network_of(given: Outside, like: Tensor, classes: int) -> Network:
    """A module, or what a class or function makes, in two parts: features, then a head.

    If the module has parts `features` and `head`, these are used. Otherwise its last linear layer is the
    head, provided that it has an output for each class, and everything before it the features. A module
    without such a layer becomes the features, and a new linear head is added. Features are flattened to (B,
    d). A module is copied with its weights; what a class or function makes is drawn from torch's global
    generator.

    given: the module, or the class or function that makes it
    like: samples (n, ...) that it accepts; their values do not matter
    classes: number of classes

    ParamError if it does not accept such samples, or is not head(features(x)).
    """
    module = copy.deepcopy(given) if isinstance(given, nn.Module) else given()
    if not isinstance(module, nn.Module):
        raise ParamError(f"{name_of(given)}: makes {type(module).__name__}, expected a module of torch.nn")
    return split(module, like, classes, name_of(given))


def name_of(given: Outside) -> str:
    """The name of the class or function."""
    return str(getattr(given, "__name__", type(given).__name__))


def split(module: nn.Module, like: Tensor, classes: int, name: str) -> Network:
    """`network_of` a module that is not copied; `name`: what errors call it."""
    if isinstance(module, Network):
        return module
    _key_dropouts(module.cpu())
    samples = _samples(like, module)
    whole = _output(module, samples, name)
    parts = _parts(module, whole, classes)
    features, head = parts if parts else (module, None)
    made = with_head(features, head, like, classes, name)
    if parts and not torch.allclose(_output(made, samples, name), whole, atol=CLOSE):
        raise ParamError(
            f"{name}: is not head(features(x)): give it parts `features` and `head` of which it is made"
        )
    return made


def with_head(
    features: nn.Module, head: nn.Module | int | None, like: Tensor, classes: int, name: str
) -> Network:
    """The network of two parts.

    features: flattened where it does not give (B, d)
    head: representation (B, d) -> logits (B, classes); a number: a new linear layer with so many inputs;
        None: with as many as there are
    like, classes, name: as of `split`
    """
    samples = _samples(like, features)
    values = _output(features, samples, name)
    if values.dim() != 2:
        features, values = nn.Sequential(features, nn.Flatten(1)), values.flatten(1)
    if not isinstance(head, nn.Module):
        head = nn.Linear(values.shape[1] if head is None else head, classes, dtype=values.dtype)
    width = head.in_features if isinstance(head, nn.Linear) else values.shape[1]
    logits = _output(head, values[:, :width], name)
    if logits.shape != (len(samples), classes):
        shape = tuple(logits.shape[1:])
        raise ParamError(f"{name}: its head gives {shape} for a sample, expected ({classes},), the classes")
    return Network(features, head, width=width, classes=classes)


def of_arguments(function: Callable, name: str, values: Mapping[str, Any]) -> Any:
    """What a function returns for those of the values that it has arguments for, by their names. ParamError
    for another argument without a default."""
    wanted = inspect.signature(function).parameters.values()
    unknown = [one.name for one in wanted if one.name not in values and one.default is one.empty]
    if unknown:
        raise ParamError(f"{name}: has the argument {unknown[0]!r}, expected some of {', '.join(values)}")
    return function(**{one.name: values[one.name] for one in wanted if one.name in values})


def _samples(like: Tensor, module: nn.Module) -> Tensor:
    """Some samples of this shape on the CPU, zeros where there are none; of the type of the module's weights,
    where they are not whole numbers."""
    samples = like[:TRIED].cpu() if len(like) else torch.zeros(1, *like.shape[1:], dtype=like.dtype)
    if not samples.is_floating_point():
        return samples
    floats = (value.dtype for value in module.parameters() if value.is_floating_point())
    return samples.to(next(floats, torch.get_default_dtype()))


@torch.no_grad()
def _output(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """What a module gives in evaluation mode; ParamError for one that fails."""
    training = module.training
    try:
        values = module.eval()(x)
        if not isinstance(values, Tensor) or not values.dim() or len(values) != len(x):
            raise ValueError(f"gives {type(values).__name__}, expected a tensor of {len(x)} rows")
    except (Exception, SystemExit) as error:
        raise ParamError(f"{name}: fails for samples of shape {(*x.shape[1:],)}: {cause(error)}") from error
    finally:
        module.train(training)
    return values


def _parts(module: nn.Module, whole: Tensor, classes: int) -> tuple[nn.Module, nn.Module] | None:
    """(features, head) of a module that has them; None where all of it is features."""
    own = getattr(module, "features", None), getattr(module, "head", None)
    if all(isinstance(part, nn.Module) for part in own):
        return own  # type: ignore[return-value]
    if whole.shape[1:] != (classes,):
        return None
    if isinstance(module, nn.Linear):
        return nn.Identity(), module
    last = [(owner, key, layer) for owner, key, layer in _layers(module) if isinstance(layer, nn.Linear)]
    if not last or last[-1][2].out_features != classes:
        return None
    owner, key, head = last[-1]
    setattr(owner, key, nn.Identity())
    return module, head


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(owner, name, layer) of every layer inside, in the order of their definition."""
    for owner in module.modules():
        for key, layer in owner.named_children():
            yield owner, key, layer


def _key_dropouts(module: nn.Module) -> None:
    """Put the engine's dropout, whose masks have keys, in the place of torch's."""
    for owner, key, layer in [*_layers(module)]:
        if type(layer) is nn.Dropout:
            setattr(owner, key, Dropout(layer.p))
