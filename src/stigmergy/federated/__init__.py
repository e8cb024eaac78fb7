"""Federated learning: agents that train one model together, and a server that sees sums of their updates only.

    fleet = st.Fleet("city", agents=[Training, SumRound, Learner])

Importing it needs numpy, which comes with `pip install "stigmergy[onnx]"`. docs/federated.md is its manual.
"""

from __future__ import annotations

try:
    from stigmergy.federated.coordinator import SumRound, Training, unmask
    from stigmergy.federated.learner import Learner, Participant, Trained, Trainer, training_seed
    from stigmergy.federated.messages import (
        ModelImproved,
        RoundAnswered,
        RoundGivenUp,
        RoundSummed,
        StartTraining,
        SumOpened,
        TakePart,
        TrainingEnded,
        Unmask,
    )
    from stigmergy.federated.net import Floats, Net, area_under_curve
    from stigmergy.federated.release import Measured, net_as_onnx, packed
    from stigmergy.federated.secure_sum import SumRefused
    from stigmergy.federated.update import UpdateLimits
    from stigmergy.federated.vault import FolderVault, MemoryVault, Vault
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    raise ModuleNotFoundError(
        'stigmergy.federated needs numpy: pip install "stigmergy[onnx]", or numpy alone', name="numpy"
    ) from error

__all__ = [
    "Floats",
    "FolderVault",
    "Learner",
    "Measured",
    "MemoryVault",
    "ModelImproved",
    "Net",
    "Participant",
    "RoundAnswered",
    "RoundGivenUp",
    "RoundSummed",
    "StartTraining",
    "SumOpened",
    "SumRefused",
    "SumRound",
    "TakePart",
    "Trained",
    "Trainer",
    "Training",
    "TrainingEnded",
    "Unmask",
    "UpdateLimits",
    "Vault",
    "area_under_curve",
    "net_as_onnx",
    "packed",
    "training_seed",
    "unmask",
]
