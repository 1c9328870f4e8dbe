"""FedRepro: five federated-learning papers, from public data to their own tables."""

from pipeline.source_code import install

install()
