"""Policies that learned from prepared data, and act on the environment's own observations."""

from collections.abc import Callable

from torch import Tensor, nn

Scaling = tuple[Tensor, Tensor]  # what is subtracted [n], and then what is divided by [n]


class Adapted(nn.Module):
    """Turns a policy for prepared data into one for the environment: obs [..., O], maybe a goal -> action [..., A].

    Observations are standardised by `obs`; actions are clipped to [-1, 1] and mapped to their bounds by `action`. A
    goal stays as it is.
    """

    def __init__(self, policy: Callable[..., Tensor], obs: Scaling | None, action: Scaling | None):
        super().__init__()
        self.policy = policy
        for name, scaling in (("obs", obs), ("action", action)):
            for part, tensor in zip(("shift", "scale"), scaling or (None, None), strict=True):
                self.register_buffer(f"{name}_{part}", tensor)

    def scaling(self, name: str) -> Scaling | None:
        """The scaling of "obs" or of "action"."""
        shift, scale = getattr(self, f"{name}_shift"), getattr(self, f"{name}_scale")
        return None if scale is None else (shift, scale)

    def forward(self, obs: Tensor, *goal: Tensor) -> Tensor:
        return raw_action(self.policy(prepared_obs(obs, self.scaling("obs")), *goal), self.scaling("action"))


def prepared_obs(obs: Tensor, scaling: Scaling | None) -> Tensor:
    """The environment's observations [..., O] as prepared data has them."""
    return (obs - scaling[0]) / scaling[1] if scaling else obs


def raw_action(action: Tensor, scaling: Scaling | None) -> Tensor:
    """Actions [..., A] of a policy for prepared data as the environment takes them."""
    action = action.clamp(-1, 1)
    return action * scaling[1] + scaling[0] if scaling else action
