"""FedRepro: five federated-learning papers, from public data to their own tables."""
