"""Figure 1: what is missed over the rounds."""

from matplotlib import pyplot as plt


def missed(numbers, rounds):
    scenarios = rounds["scenario"].unique()
    figure, panels = plt.subplots(1, len(scenarios), figsize=(7, 2.5), layout="constrained", squeeze=False)
    for axes, scenario in zip(panels[0], scenarios):
        for method, rows in rounds[rounds["scenario"] == scenario].groupby("method", sort=False):
            rows.groupby("round")["metric.balanced_error"].mean().plot(ax=axes, label=method)
        axes.set(title=scenario, ylabel="balanced error, %")
    panels[0][0].legend()
    return figure
