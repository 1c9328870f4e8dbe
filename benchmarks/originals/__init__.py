"""Public code of the methods, to compare with: a module for each repository.

Each imports the user's checkout; no code of others is in this folder."""

# Methods of pipeline/methods that no module compares.
NOT_COMPARED = {
    "centralised": "no federated method; with one client it is FedAvg, bit for bit",
    "fedavg_plus": "no public code",
    "fedccl": "no public code",
    "fedccl_plus": "no public code",
    "fedcrl": "no public code",
    "fedlsa": "no public code",
    "fedmatch": "ours is for different networks, as FCCL+'s, which is not public; wyjeong/FedMatch has one",
}
