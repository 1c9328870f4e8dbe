"""FedRepro: five federated-learning papers, from public data to their tables."""

from pipeline.source_code import install

install()
