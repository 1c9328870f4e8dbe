"""How many of a class are missed."""

import torch


def balanced_error(clients):
    """100 minus the mean recall over the classes, of all clients' predictions together."""
    labels = torch.cat([client.labels for client in clients])
    right = torch.cat([client.right for client in clients]).double()
    recalls = [right[labels == label].mean() for label in labels.unique()]
    return 100 * (1 - sum(recalls) / len(recalls))
