"""What clients remember and learn between public phases: FCCL, FCCL+, FedMatch and FedDF."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from all_methods import name, of
from federation import close, one_round, run, same, training
from public_data import CLASSES, adam, alike, federation, kl, modules, same_parameters, three

from pipeline import keys
from pipeline.data import augmentations
from pipeline.engine.phase import Client, LocalOptions
from pipeline.engine.state import Clients, Params
from pipeline.engine.world import World
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import FCCLPlus, elastic_penalty, fisher
from pipeline.methods.feddf import FedDF
from pipeline.methods.fedmatch import FedMatch, nearest
from pipeline.methods.local import Local
from pipeline.schema import Model, Optimiser


def home(method, monkeypatch, rounds=1, world=None, **changes):
    """The calls of World.local_epochs in the last of some rounds: (models, keyword arguments), between the
    states around it, and what that round's training left."""
    world = world or three(monkeypatch, **changes)
    state, calls = run(method, world, rounds - 1) if rounds > 1 else method.init(world), []
    world, real = world.at(rounds), World.local_epochs
    monkeypatch.setattr(
        World,
        "local_epochs",
        lambda self, models, loss, **k: calls.append((models, loss, k)) or real(self, models, loss, **k),
    )
    after, trained = one_round(method, state, world)
    return state, after, calls, trained


def test_the_teacher_is_the_model_of_the_last_rounds_end(monkeypatch):
    for rounds in (1, 3):  # in the first round the client's first model
        state, _, calls, _ = home(FCCLPlus(), monkeypatch, rounds)
        assert same(calls[-1][2]["client_state"]["previous"], state.models)
        assert not same(calls[-1][0], state.models)
    assert same(home(FCCLPlus(), monkeypatch)[0].models, three(monkeypatch).new_models())


def test_fccl_starts_from_theta_star_and_keeps_it(monkeypatch):
    world = three(monkeypatch).at(0)
    options = LocalOptions(epochs=3, stream="pretraining")
    alone = world.local_epochs(world.new_models(), Local().loss, options=options).models
    assert same(FCCL(pretraining=3).init(world).models, alone)
    state = run(FCCL(pretraining=3), world, 3)
    assert same(state.pretrained, alone)
    assert not same(state.models, alone)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_local_phase_of_fccl_as_written_out(mode, monkeypatch):
    """One client with BatchNorm, one batch: CE and two teachers, with statistics of the batch or running."""
    world = federation(monkeypatch, (4, 4), ["bn", "plain"])
    method = FCCL(pretraining=1, teacher_mode=mode)
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    x, y = world.clients[0].images, world.clients[0].labels
    student, before, alone = (
        modules(world, models)[0] for models in (calls[-1][0], state.models, state.pretrained)
    )
    for teacher in (before, alone):
        teacher.train(mode == "train")
    z = student(x)
    with torch.no_grad():
        taught = before(x), alone(x)
    (F.cross_entropy(z, y) + kl(taught[0], z) + kl(taught[1], z)).backward()
    adam(student.parameters()).step()
    close(after.models[0], Params((n, v.detach()) for n, v in student.state_dict().items()), 1e-8)


@pytest.mark.parametrize(
    "options, tau, scale", [({}, 3.0, 9.0), ({"tau": 1.0}, 1.0, 1.0), ({"tau_squared": False}, 3.0, 1.0)]
)
@pytest.mark.parametrize("local", ["fntd", "kd"])
def test_local_phase_of_fcclplus_as_written_out(local, options, tau, scale, monkeypatch):
    world = federation(monkeypatch, (4, 4), ["bn", "plain"])
    state, after, calls, _ = home(FCCLPlus(local=local, **options), monkeypatch, 2, world)
    x, y = world.clients[0].images, world.clients[0].labels
    student, teacher = (modules(world, models)[0] for models in (calls[-1][0], state.models))
    z = student(x)
    s, t = F.log_softmax(z / tau, 1), F.log_softmax(teacher(x).detach() / tau, 1)
    terms = t.exp() * (t - s)
    saved = terms if local == "kd" else terms * (1 - F.one_hot(y, CLASSES))
    (F.cross_entropy(z, y) + scale * saved.sum(1).mean()).backward()
    adam(student.parameters()).step()
    close(after.models[0], Params((n, v.detach()) for n, v in student.state_dict().items()), 1e-8)


@pytest.mark.parametrize("share, wanted", [(0.3, [6, 14]), (0.1, [2, 18]), (0.0, [0, 20]), (1.0, [20, 0])])
def test_kd_takes_the_first_part_of_the_local_epochs(share, wanted, monkeypatch):
    method = FCCLPlus(kd_share=share)
    _, _, calls, trained = home(method, monkeypatch, local_epochs=20)
    assert [c[2]["options"].epochs for c in calls] == wanted
    assert [c[1] for c in calls] == [method.all_classes, method.loss]
    assert all(map(math.isfinite, trained.losses))  # also where one part has no epoch


def test_fisher_information_sample_by_sample(monkeypatch):
    world = federation(monkeypatch, (11, 3, 0), ["bn", "plain", "dropout"])
    models = world.new_models()
    actual = fisher(models, world)
    for k in range(2):
        net, total = modules(world, models)[k].eval(), {}
        for x, y in zip(world.clients[k].images, world.clients[k].labels):
            net.zero_grad()
            F.log_softmax(net(x[None]), 1)[0, y].backward()
            total = {n: total.get(n, 0) + p.grad.pow(2) / world.sizes[k] for n, p in net.named_parameters()}
        close(actual[k], Params(total), 1e-12)
    assert actual[2].keys() == {n for n, _ in modules(world, models)[2].named_parameters()}
    assert all(value.abs().max() == 0 for value in actual[2].values())


def test_fisher_information_of_the_papers_networks():
    """Every network of FCCL+ has a rule for gradients of single samples."""
    rng = torch.Generator().manual_seed(0)
    for kind in ("resnet10", "efficientnet", "mobilenetv2", "googlenet"):
        images, labels = torch.randn(3, 3, 16, 16, generator=rng), torch.tensor([0, 1, 1])
        world = World.create([client := Client("c", "only", Model(kind), images, labels)], training(), 2, 0)
        models = world.new_models()
        head = fisher(models, world)[0]["head.bias"]
        p = F.softmax(world.network(0, models[0])(client.images), 1).detach()
        close(head, (p - F.one_hot(client.labels, 2)).pow(2).mean(0), 1e-7)


def test_ewc_anchors_the_last_rounds_model(monkeypatch):
    """Without weight it is cross-entropy; with a large one the client stays nearer to the anchor."""
    start = three(monkeypatch)
    plain, none, strong = (
        run(FCCLPlus(**o), three(monkeypatch, optimiser=Optimiser("sgd", 0.05), local_epochs=5), 1).models
        for o in ({"local": "ce"}, {"local": "ewc", "ewc": 0.0}, {"local": "ewc", "ewc": 10.0})
    )
    close(plain, none, 1e-12)
    method, world = FCCLPlus(local="ewc"), start
    state = method.init(world)
    information = fisher(state.models, world)

    def penalty(models):
        return [
            float(elastic_penalty({n: m[n] for n in information[k]}, state.models[k], information[k]))
            for k, m in enumerate(models)
        ]

    assert all(a < b for a, b in zip(penalty(strong), penalty(plain)))


AVERAGED = [*map(of, "fedmd feddf fedmatch rhfl fccl fcclplus".split())]


@pytest.mark.parametrize("method", AVERAGED, ids=name)
def test_models_are_averaged_between_the_phases(method, monkeypatch):
    world = alike(monkeypatch, averaging="uniform")
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    starts = calls[-1][0]
    assert same(starts[0], starts[1]) and same(starts[1], starts[2])
    assert not same(after.models[0], after.models[1])  # each scores its model
    if "client_state" in calls[-1][2] and calls[-1][2]["client_state"] is not None:
        assert same(calls[-1][2]["client_state"]["previous"], state.models)  # teachers stay per client


STARTS = "fedmd feddf fedmatch rhfl fcclplus ktpfl aughfl rahfl local".split()


@pytest.mark.parametrize("method", [*map(of, STARTS), of("fedproto_hetero", space="features")], ids=name)
def test_clients_of_one_network_draw_their_where_no_model_is_shared(method, monkeypatch):
    """RAHFL, Figure 4, as its code's init_nets; FCCL+, Table 15, averages and has one start."""
    separate, averaged = (method.init(alike(monkeypatch, averaging=how)).models for how in (None, "uniform"))
    assert not any(same_parameters([separate[i]], [separate[j]]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert same(averaged[0], averaged[1]) and same(averaged[1], averaged[2])


@pytest.mark.parametrize("method", [FCCL(pretraining=1), FCCLPlus(local="fccl", pretraining=1)], ids=name)
def test_each_pretrains_a_separate_network(method, monkeypatch):
    def begun(how):
        seen, world = [], alike(monkeypatch, averaging=how)

        def watched_run(phase):
            seen.append(phase)
            return world.executor.run(phase)

        method.init(world.at(0, SimpleNamespace(run=watched_run)))
        return seen[0].models

    separate, common = begun(None), begun("uniform")
    assert not same_parameters([separate[0]], [separate[1]])
    assert same(common, Clients([common[0]] * 3))


SHARED = [*map(of, ("fedper", "lgfedavg", "ditto", "fedavg")), of("feddf", form="original")]


@pytest.mark.parametrize("method", SHARED, ids=name)
def test_methods_with_a_model_at_the_server_start_from_one(method, monkeypatch):
    world = alike(monkeypatch, "plain")
    models = method.deployed(method.init(world), world)
    assert same(models, Clients([models[0]] * 3)) and same(models[0], world.new_model())


def test_helpers_are_the_nearest_others_and_of_equals_the_first():
    answers = torch.tensor([[0.0, 1.0], [0.125, 0.875], [0.875, 0.125], [0.25, 0.75], [0.875, 0.125]])
    assert nearest(answers, 2) == [[1, 3], [0, 3], [4, 3], [1, 0], [2, 3]]
    assert nearest(answers[:2], 2) == [[1], [0]]
    assert nearest(answers[:1], 2) == [[]]
    assert nearest(answers[:2], 0) == [[], []]


def parts(state) -> tuple[list[dict], list[dict]]:
    """(sigma, psi) of every client."""
    return [{n: state.models[k][n] - v for n, v in part.items()} for k, part in enumerate(state.psi)], [
        dict(part) for part in state.psi
    ]


def test_public_batches_move_psi_and_private_ones_sigma(monkeypatch):
    state, after, calls, _ = home(FedMatch(kappa=0.0), monkeypatch, 2)
    agreed = calls[-1][0]  # theta between the phases
    (sigma0, psi0), (sigma1, psi1) = parts(state), parts(after)
    for k in range(3):
        for n in psi0[k]:
            close(agreed[k][n], sigma0[k][n] + psi1[k][n], 1e-5)  # sigma stood still so far
            assert (psi1[k][n] - psi0[k][n]).abs().max() > 1e-4
        assert max(float((sigma1[k][n] - sigma0[k][n]).abs().max()) for n in psi0[k]) > 1e-4


def test_the_penalties_act_on_every_batch_confident_or_not(monkeypatch):
    """With Adam's first steps of lr each, psi goes towards sigma: 3 steps of 1e-2 from 0.2 to 1 sigma."""
    world = three(monkeypatch)
    method = FedMatch(kappa=1.0)
    state = method.before_round(method.init(world), world)
    (sigma, psi), agreed = parts(state), method.collaborate(state, world)
    for k in range(3):
        for n, s in sigma[k].items():
            far = s.abs() > 0.1  # farther than the steps reach
            close((agreed[k][n] - s - psi[k][n])[far], 0.03 * s.sign()[far], 1e-4)


def test_one_part_without_public_terms_is_supervised_training(monkeypatch):
    method = FedMatch(decomposed=False, kappa=1.0)
    worlds = [federation(monkeypatch, (12, 7), ["plain", "dropout"]) for _ in range(2)]
    assert same(run(method, worlds[0]).models, run(Local(), worlds[1]).models)


def test_the_strong_view_is_of_the_public_image_and_not_of_its_crop(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"]).at(1)
    forum = dataclasses.replace(
        world.public_data, settings=dataclasses.replace(world.public_data.settings, augmentation="weak")
    )
    vars(world)["public_data"] = forum
    stored = [images for _, images in forum.batches(world.seed, 1, 1)]
    cropped = [batch.images for batch in world.public_batches()]
    bare = [batch for batch in FedMatch().public_batches(None, world)]
    assert len(stored) == len(cropped) == len(bare) > 1
    for original, weak, (seen, key) in zip(stored, cropped, bare):
        assert not torch.equal(original, weak)
        for client, (first, second) in zip(world.clients, seen, strict=True):
            of_image, of_crop = (
                forum.pixels.inputs(
                    augmentations.strong(
                        forum.pixels.bytes(images),
                        keys.torch_generator("public own views", *key, client.name),
                    ),
                    images,
                )
                for images in (original, weak)
            )
            assert torch.equal(first, weak) and torch.equal(second, of_image)
            assert not torch.equal(second, of_crop)


def test_fedmatch_collaborates_as_written_out(monkeypatch):
    """One part; consistency with the helpers and the cross-entropy of the strong view with the vote."""
    world = federation(monkeypatch, (12, 0, 9), ["bn", "plain", "bn"])
    method = FedMatch(decomposed=False, kappa=0.33, lam_i=1.0, lam_a=0.5)
    state = method.before_round(method.init(world), world)
    nets, seen = modules(world, state.models), []
    for views in method.public_batches(state, world):
        logits = [(net(weak), net(strong)) for net, (weak, strong) in zip(nets, views.images)]
        p = [F.softmax(z, 1) for z, _ in logits]
        for k, net in enumerate(nets):
            sure = p[k].max(1).values.detach() >= 0.33
            seen.append(int(sure.sum()))
            value = 0 * logits[k][0].sum()
            if sure.any():
                helpers = [p[h].detach()[sure] for h in state.helpers[k]]
                votes = sum(F.one_hot(q.argmax(1), CLASSES) for q in [p[k].detach()[sure], *helpers])
                value = sum((q * (q.log() - p[k][sure].log())).sum(1).mean() for q in helpers) / 2
                value = value + 0.5 * F.cross_entropy(logits[k][1][sure], votes.argmax(1))
            step = adam(net.parameters())
            step.zero_grad()
            value.backward()
            step.step()
    assert 0 < sum(seen) < 3 * 20  # the gate parts the samples
    wanted = Clients(Params((n, v.detach()) for n, v in net.state_dict().items()) for net in nets)
    close(method.collaborate(state, world), wanted, 1e-8)


def test_original_feddf_gives_one_model_per_architecture(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9, 5), ["bn", "plain", "bn", "plain"])
    method = FedDF(form="original", server_steps=5)
    state = run(method, world, 1)
    assert same(state.models[0], state.models[2])
    assert same(state.models[1], state.models[3])
    assert method.headline == "pre"
    assert same(method.deployed(state, world), state.models)


@pytest.mark.parametrize("weighted, weights", [(True, (12, 4)), (False, (1, 1))])
def test_original_feddf_begins_with_the_average_and_comes_nearer_to_the_ensemble(
    weighted, weights, monkeypatch
):
    world = federation(monkeypatch, (12, 4), ["plain", "plain"], local_epochs=30)
    method = FedDF(form="original", server_steps=60, weighted=weighted)
    models = world.local_epochs(world.new_models(), Local().loss).models
    nets = [net.eval() for net in modules(world, models)]
    average = modules(
        world,
        [{n: (weights[0] * v + weights[1] * models[1][n]) / sum(weights) for n, v in models[0].items()}] * 2,
    )[0]
    student = modules(world, method.fuse(models, models, world))[0]
    with torch.no_grad():
        ensemble = sum(net(world.public_images) for net in nets) / 2
        assert kl(ensemble, student(world.public_images)) < 0.9 * kl(ensemble, average(world.public_images))
    one_step = dataclasses.replace(method, server_steps=1).fuse(models, models, world)[0]
    for n, p in average.named_parameters():
        assert (one_step[n] - p).abs().max() <= 1e-3 * 1.001  # Adam's first step at lr 1e-3
