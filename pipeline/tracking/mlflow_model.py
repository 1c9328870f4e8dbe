"""Loads a seed's final models for `mlflow.pyfunc.load_model`. It lies with the models, and imports nothing of
this package."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch


def _load_pyfunc(path: str) -> "Scored":
    """MLflow calls it with the folder of card.json and predict.py."""
    found = importlib.util.spec_from_file_location("predict", Path(path) / "predict.py")
    assert found and found.loader
    predict = importlib.util.module_from_spec(found)
    found.loader.exec_module(predict)
    return Scored(predict)


class Scored:
    """The models by which a seed was scored."""

    def __init__(self, predict: Any):
        self.predict_module = predict
        # file -> the model that was loaded from it
        self.models: dict[str, Any] = {}

    def predict(self, samples: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        """Scores, (N, classes), of samples as the data set has them: pixels (N, height, width, channels),
        rows, signals; of a scenario with frozen features those.

        params: `file`, one of the `.pt2` files, where clients have their own
        """
        card = self.predict_module.CARD
        name = (params or {}).get("file") or card["scored"]
        if name not in self.models:
            self.models[name] = self.predict_module.load(name)
        given = np.asarray(samples)
        frozen = card["data"]["features"] != "pixels"
        inputs = torch.from_numpy(given) if frozen else self.predict_module.prepare(given)
        with torch.no_grad():
            return self.models[name](inputs).numpy()
