"""What holds for every method and its options: both executors agree, small clients do no harm, a checkpoint
continues bit for bit."""

import dataclasses
import io

import pytest
import torch
from federation import close, finite, image_clients, on_both, run, same, training, watched

from pipeline import methods
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import pack, unpack
from pipeline.engine.world import World
from pipeline.methods.aughfl import AugHFL
from pipeline.methods.ditto import Ditto
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import FCCLPlus
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedala import FedALA
from pipeline.methods.fedamp import FedAMP
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavg_plus import FedAvgPlus
from pipeline.methods.fedavgm import FedAvgM
from pipeline.methods.fedbn import FedBN
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedccl_plus import FedCCLPlus
from pipeline.methods.fedcrl import FedCRL
from pipeline.methods.feddf import FedDF
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fedga import FedGA
from pipeline.methods.fedgh import FedGH
from pipeline.methods.fedlsa import FedLSA
from pipeline.methods.fedmatch import FedMatch
from pipeline.methods.fedmd import FedMD
from pipeline.methods.fednova import FedNova
from pipeline.methods.fedpac import FedPAC
from pipeline.methods.fedpcl import FedPCL
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedproc import FedProc
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.fedprox import FedProx
from pipeline.methods.fedrep import FedRep
from pipeline.methods.fedrs import FedRS
from pipeline.methods.fedsr import FedSR
from pipeline.methods.fedtgp import FedTGP
from pipeline.methods.fpl import FPL
from pipeline.methods.ktpfl import KTpFL
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.local import Local
from pipeline.methods.moon import Moon
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.methods.rahfl import RAHFL
from pipeline.methods.rhfl import RHFL
from pipeline.methods.scaffold import Scaffold
from pipeline.schema import Model, Optimiser, Public

ONE_NETWORK = [
    Local(),
    FedAvg(),
    FedProx(mu=0.1),
    FedAvgM(),
    FedAdam(),
    Scaffold(),
    Scaffold(option="I"),
    FedNova(),
    FedDyn(alpha=0.1),
    FedBN(),
    FedPer(),
    LGFedAvg(),
    FedRep(head_epochs=1),
    PFedMe(inner_steps=2),
    PerFedAvg(beta=0.05),
    PerFedAvg(beta=0.05, variant="hf"),
    PerFedAvg(meta="adam"),
    FedAMP(alpha=1.0, sigma=1.0),
    FedAMP(alpha=1.0, sigma=1.0, penalty="norm"),
    FedALA(),
    Ditto(),
    Moon(buffer=2),
    FedProto(),
    FedProto(averaging=True),
    FedGH(),
    FedPAC(),
    FedCRL(),
    FedTGP(server_epochs=20),
    FedTGP(server_epochs=20, candidates="own", means="running"),
    FedTGP(averaging=True, server_epochs=20),
    FedLSA(server_epochs=20),
    FedLSA(server_epochs=20, compactness="distance"),
    FedGA(),
    FedGA(metric="accuracy"),
    FedSR(),
    FedSR(share_reference=True, norm="squared"),
    FedRS(),
    FedRS(mode="soft", bias=True),
    FedProc(),
    FedProc(alpha=0.5, tau=0.07, weighted=False, normalise_features=True),
    FedPCL(),
    FedPCL(averaging=False, ce=False, inference="local_prototype", normalise_head=True),
    FedPCL(contrast="official", exclude_positive=True),
    FPL(),
    FPL(clusters="first", upcr="sum", means="running", tau=0.5),
    FPL(means="last_epoch"),
    FedCCL(),
    FedCCL(exclude_own=True, local_signals="mean", global_signals="mean", reduction="sum", tau=0.5),
    FedAvgPlus(eps=0.1, steps=3),
    FedCCLPlus(eps=0.1, steps=3),
]
DIFFERENT_NETWORKS = [
    FedMD(),
    FedMD(distance="mse", second_forward=True),
    FedDF(),
    FedDF(form="original", server_steps=5),
    FedMatch(kappa=0.3),
    FedMatch(kappa=0.3, decomposed=False),
    RHFL(),
    RHFL(guarded=True, schedule="release"),
    FCCL(pretraining=2),
    FCCL(pretraining=2, consensus="conference", teacher_mode="eval"),
    FCCLPlus(),
    FCCLPlus(local="fccl", pretraining=2, fccm=False),
    FCCLPlus(local="ewc"),
    FCCLPlus(kd_share=0.5, teacher="collaborated"),
    FCCLPlus(local="kd", second_forward=True, renormalise=True),
    KTpFL(),
    KTpFL(update="code", tau=2.0),
    FedProtoHetero(),
    FedProtoHetero(weighted=True, means="eval"),
    AugHFL(),
    RAHFL(),
    RAHFL(contrast_form="paper", distillation_form="paper", acc_source="test"),
    RAHFL(asymmetric=False, augmix=False, contrast="none"),
    RAHFL(contrast="supcon"),
]
METHODS = ONE_NETWORK + DIFFERENT_NETWORKS
PUBLIC = tuple({type(method) for method in DIFFERENT_NETWORKS})

NETWORKS = {
    FedSR: Model("cnn4_gaussian"),
    FedLSA: Model("fedlsa"),
    FedBN: Model("cnn3_bn"),
    FedRS: Model("cnn4"),
    Scaffold: Model("cnn4"),
}
# The others train with Adam. FedAMP's attention would make much of rounding in its first steps.
SGD = (Scaffold, FedNova, FedAMP)
PROJECTED = [
    Model(name, projector=8, **options)
    for name, options in (("cnn4", {}), ("cnn2", {"features": 32, "dropout": 0.3}), ("cnn3_bn", {}))
]


def name(method) -> str:
    changed = {
        field.name: getattr(method, field.name)
        for field in dataclasses.fields(method)
        if getattr(method, field.name) != field.default
    }
    return f"{type(method).__name__}{changed or ''}"


each_method = pytest.mark.parametrize("method", METHODS, ids=name)


def world_for(method, sizes=(20, 33, 0, 1, 12), dtype=torch.float32, one_class=False, **changes) -> World:
    """Clients with pixels in [0, 1], and what else the method needs: its network, public, held-out images."""
    optimiser = Optimiser("sgd", 0.05) if isinstance(method, SGD) else Optimiser("adam", 0.003)
    network = NETWORKS.get(type(method), Model("cnn2", dropout=0.3))
    several = [PROJECTED[k % 3] for k in range(len(sizes))]
    clients = image_clients(sizes, several if isinstance(method, PUBLIC) else network, one_class=one_class)
    clients = [dataclasses.replace(c, images=c.images.to(dtype).sigmoid()) for c in clients]
    drawn = torch.Generator().manual_seed(9)

    def batch(n: int) -> Batch:
        images = torch.rand(n, 1, 16, 16, generator=drawn).to(dtype)
        return Batch(images, torch.randint(0, 10, (n,), generator=drawn))

    public = (batch(24).images, Public("made up", batch_size=16)) if isinstance(method, PUBLIC) else None
    return World.create(
        clients,
        training(**{"optimiser": optimiser, **changes}),
        10,
        0,
        public=public,
        heldout=batch(30),
        test=batch(50),
    )


@each_method
def test_both_executors_agree(method):
    """In float64, on clients of which one has no image and one a single image. Public steps by SGD: the first
    step of a new Adam divides by |g| + 1e-8, so that rounding of a tiny gradient grows."""
    if "public_optimiser" in vars(method):
        method = dataclasses.replace(method, public_optimiser="sgd")

    def end() -> list:
        state, trained = watched(method, world_for(method, dtype=torch.float64, local_epochs=2), 2)
        return [state, trained.models]

    plain, stacked = on_both(end)
    close(stacked, plain, 1e-7 if isinstance(method, PUBLIC) else 1e-9)


@each_method
def test_small_clients_do_no_harm(method):
    """No image, a single one, one class, fewer than a batch: models and scores stay finite."""
    for changes in ({"one_class": True}, {"sizes": (5, 50, 0), "drop_last": True}):
        world = world_for(method, **changes)
        state, trained = watched(method, world, 2)
        deployed = method.deployed(state, world)
        assert finite(deployed) and finite(method.after_training(state, trained.models))
        for k, model in enumerate(deployed):
            handle = Handle(world.network(k, model), client=k)
            with torch.inference_mode():
                scores = method.scores(handle, world.clients[1].images, state)
            assert scores.shape == (len(world.clients[1].labels), 10) and not scores.isnan().any()


@each_method
def test_a_checkpoint_continues_bit_for_bit(method):
    world, file = world_for(method, (20, 0, 7)), io.BytesIO()
    state = run(method, world, 2)
    torch.save(pack(state), file)
    file.seek(0)
    again = unpack(torch.load(file, weights_only=True))
    assert same(again, state)
    assert same(method.round(again, world.at(3)), method.round(state, world.at(3)))


def test_headlines_are_those_of_the_tables():
    """A global model is scored before local training, models of the clients' own after it."""
    pre = [method for method in DIFFERENT_NETWORKS if method.headline == "pre"]
    post = [method for method in ONE_NETWORK if method.headline == "post"]
    assert [getattr(method, "form", "") for method in pre] == ["original"]
    assert {type(method) for method in post} == {PFedMe, FedAMP, Ditto, FedProto, FedCRL, FedTGP}
    assert not any(getattr(method, "averaging", False) for method in post)


def test_every_method_is_tested():
    tested = {type(method).__module__.rpartition(".")[2] for method in METHODS}
    assert set(methods.names()) - tested == {"centralised"}
