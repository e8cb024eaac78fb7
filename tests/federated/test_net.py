"""The net learns, by the gradient that it says, the same way every time."""

import numpy as np
import pytest

from stigmergy.federated.net import Net, area_under_curve


@pytest.mark.parametrize("hidden", [0, 3])
def test_the_gradient_is_that_of_the_loss(hidden: int) -> None:
    net, draw = Net(4, hidden), np.random.default_rng(1)
    rows, labels = draw.normal(0, 1, (20, 4)), (draw.random(20) > 0.5).astype(float)
    weights = net.begin(2) + 0.1

    def loss(at: np.ndarray) -> float:
        said = net.predict(at, rows)
        return float(-np.mean(labels * np.log(said) + (1 - labels) * np.log(1 - said)))

    step = 1e-6
    slopes = [
        (loss(weights + step * one) - loss(weights - step * one)) / (2 * step) for one in np.eye(net.weights_count)
    ]
    assert np.allclose(net.gradient(weights, rows, labels), slopes, atol=1e-7)


def test_a_hidden_layer_learns_what_a_straight_line_cannot() -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(0, 1, (400, 2))
    labels = (rows[:, 0] * rows[:, 1] > 0).astype(float)
    areas = []
    for hidden in (0, 8):
        net = Net(2, hidden)
        weights = net.train(net.begin(1), rows, labels, seed=1, epochs=40, rate=0.03)
        assert np.array_equal(weights, net.train(net.begin(1), rows, labels, seed=1, epochs=40, rate=0.03))
        areas.append(area_under_curve(labels, net.predict(weights, rows)))
    assert areas[0] < 0.7
    assert areas[1] > 0.97


def test_the_area_under_the_curve() -> None:
    labels = np.array([0.0, 0.0, 1.0, 1.0])
    assert area_under_curve(labels, np.array([0.1, 0.2, 0.3, 0.4])) == 1.0
    assert area_under_curve(labels, np.array([0.4, 0.3, 0.2, 0.1])) == 0.0
    assert area_under_curve(labels, np.array([0.1, 0.3, 0.3, 0.4])) == 0.875
    with pytest.raises(ValueError, match="both labels"):
        area_under_curve(np.ones(3), np.ones(3))
