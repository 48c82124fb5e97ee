"""What the options about measuring mean together."""

import pytest

from hybrid.cli.measuring import measuring
from hybrid.config import PlannerSettings
from hybrid.errors import ConfigError


@pytest.mark.parametrize("measure", ["cached", "never"])
def test_measuring_again_without_measuring_is_refused(measure):
    settings = PlannerSettings(measure=measure)
    with pytest.raises(ConfigError, match=f"--fresh measures again, but planner.measure is `{measure}`"):
        measuring(settings, fresh=True).__enter__()
    with measuring(settings, fresh=False) as known:
        assert (known is None) == (measure == "never")
