"""Public code of the methods, to compare with: a module for each repository.

Each imports the user's checkout; no code of others is in this folder."""

# Methods of pipeline/methods that no module compares.
NOT_COMPARED = {
    "centralised": "no federated method: FedAvg's local training on all images together; with one client it "
                   "is FedAvg, bit for bit",
    "fedavg_plus": "no public code: FedAvg on adversarial examples is FedCCL's own comparison",
    "fedccl": "no public code",
    "fedccl_plus": "no public code",
    "fedcrl": "no public code",
    "fedlsa": "no public code",
    "fedmatch": "ours is a reconstruction for different networks, as FCCL+ compares with; the authors' code "
                "(wyjeong/FedMatch) has one network, decomposed in TensorFlow, and FCCL+'s own is not public",
}  # fmt: skip
