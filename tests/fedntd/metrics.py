"""How evenly clients are served."""


def worst_client(clients):
    return min(client.accuracy for client in clients)
