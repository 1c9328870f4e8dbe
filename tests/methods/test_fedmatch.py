"""FedMatch: consistency with helpers, pseudo-labels, two parts of a model."""

import dataclasses

import torch
import torch.nn.functional as F
from federation import close, run, same
from public_data import B512, CLASSES, DOUBLE, adam, costs, federation, home, modules, three
from tiny import Z1, Z2, Z3, gradient

from pipeline import keys
from pipeline.data import augmentations
from pipeline.engine.state import Clients, Params
from pipeline.methods import fedmatch
from pipeline.methods.fedmatch import (
    FedMatch,
    disjoint_penalty,
    inter_client_consistency,
    majority_labels,
    nearest,
    pseudo_label_loss,
)
from pipeline.methods.local import Local

LOCAL, HELPERS, HARD = F.softmax(3 * Z1, 1), torch.stack([F.softmax(3 * Z2, 1), F.softmax(3 * Z3, 1)]), 2 * Z2


ALL, NONE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def test_consistency_with_helpers_of_the_toy_logits():
    close(inter_client_consistency(LOCAL, HELPERS, ALL), 0.765480)


def test_the_public_loss_of_the_toy_logits():
    labels = majority_labels(LOCAL, HELPERS)
    assert labels.tolist() == [0, 1, 2, 0]
    consistency = inter_client_consistency(LOCAL, HELPERS, ALL)
    close(0.01 * consistency + 0.01 * pseudo_label_loss(HARD, labels, ALL), 0.016348)


def test_the_penalty_of_two_parts_by_hand():
    sigma = Params(w=torch.tensor([1.0, 2, -1], dtype=DOUBLE))
    psi = Params(w=torch.tensor([0.2, 0.4, -0.2], dtype=DOUBLE))
    close(disjoint_penalty(sigma, psi, l1=1e-4, l2=10.0), 38.400080)


Y = torch.tensor([0, 1, 2, 0])


def test_without_confident_samples_both_terms_are_zero():
    assert not inter_client_consistency(LOCAL, HELPERS, NONE)
    assert not pseudo_label_loss(HARD, Y, NONE)
    assert gradient(lambda z: pseudo_label_loss(z, Y, NONE), HARD).abs().max() == 0


def test_both_terms_are_means_over_confident_samples():
    some = torch.tensor([True, False, True, False])
    alone = inter_client_consistency(LOCAL[some], HELPERS[:, some], ALL[some])
    close(inter_client_consistency(LOCAL, HELPERS, some), alone, 1e-5)
    close(pseudo_label_loss(HARD, Y, some), F.cross_entropy(HARD[some], Y[some]), 1e-5)


def test_helpers_that_agree_cost_nothing():
    close(inter_client_consistency(LOCAL, torch.stack([LOCAL, LOCAL]), ALL), 0.0)


def test_without_helpers_there_is_no_consistency_and_the_client_labels():
    assert inter_client_consistency(LOCAL, HELPERS[:0], ALL).item() == 0.0
    assert majority_labels(LOCAL, HELPERS[:0]).tolist() == LOCAL.argmax(1).tolist()


def test_of_classes_with_equal_votes_the_first_is_the_label():
    one = torch.eye(3, dtype=DOUBLE)
    assert majority_labels(one[[2]], one[[1]][None]).tolist() == [1]
    assert majority_labels(one[[2]], torch.stack([one[[1]], one[[0]]])).tolist() == [0]


def test_helpers_outvote_the_client():
    one = torch.eye(3, dtype=DOUBLE)
    assert majority_labels(one[[0]], torch.stack([one[[2]], one[[2]]])).tolist() == [2]


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
            assert torch.equal(first, weak)
            assert torch.equal(second, of_image)
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


def test_it_sends_its_answers_and_receives_those_of_two_helpers():
    assert costs(FedMatch(), B512) == (50_000, 100_000)


def test_of_two_clients_each_receives_those_of_one_helper():
    assert costs(FedMatch(), B512, clients=2) == (50_000, 50_000)


def test_what_is_averaged_is_sent_and_received_beside_the_answers(monkeypatch):
    monkeypatch.setattr(fedmatch, "averaged", lambda world: 7.0)
    assert costs(FedMatch(decomposed=False), B512) == (50_007, 100_007)
