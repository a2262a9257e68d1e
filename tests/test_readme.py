"""The examples of README that use an agent in one's own code run as they stand."""

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "from single_file" in code]
ALONE = [code for code in EXAMPLES if "robot" not in code]


@pytest.mark.parametrize("number", range(2))
def test_an_agent_stands_alone_as_readme_says(number):
    names: dict = {}
    exec(compile(ALONE[number], "README.md", "exec"), names)
    agent = names["agent"]
    assert agent.runs == 3 and all(t.isfinite().all() for t in agent.state_dict().values())
    action = names["action"] if number == 0 else names["actions"]
    assert isinstance(action, torch.Tensor) and action.shape[0] == 3
    assert (agent.actor_adam.steps > 10).all()


def test_examples_are_short():
    assert len(ALONE) == 2
    for code in ALONE:
        lines = [line for line in code.splitlines() if line and not re.match(r"import|from", line)]
        assert len(lines) <= 12
