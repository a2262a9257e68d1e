"""Ensembles of dynamics: the losses by hand, runs apart, stopping, and what is kept of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from offline_data import at_random
from scripts import differing, state_of

from algos.data import Dataset
from algos.dynamics import (
    FORMS,
    Ensemble,
    Settings,
    Training,
    digest_of_data,
    ensemble_file,
    likelihood_loss,
    load_ensemble,
    soft_clamp,
)
from algos.errors import UserError
from algos.nn import TruncatedNormal, initialise
from algos.per_run import numbers

SMALL = {"hidden": (8, 6), "members": 3, "elites": 2, "batch_size": 16}
forms = pytest.mark.parametrize("form", FORMS)


def training(form="offlinerl_kit", seeds=(0, 1), data=None, **settings):
    return Training(Settings(form=form, **SMALL | settings), data or at_random(), seeds)


def learn(model, epochs=2, first=1):
    for epoch in range(first, first + epochs):
        for rows in model.epoch_rows(epoch).split(model.args.batch_size, -1):
            model.update(rows)
        model.end_epoch(epoch)
    return model


# -- values by hand ----------------------------------------------------------------------------------------------------


def test_log_variances_are_bent_between_their_bounds(float64):
    """Sheet, check 1."""
    x = torch.tensor([-20.0, -10, -1, 0, 0.5, 5])
    bent = soft_clamp(x, torch.tensor(-10.0), torch.tensor(0.5))
    expected = torch.tensor([-9.999955, -9.306867, -1.201262, -0.474004, -0.193092, 0.488980])
    torch.testing.assert_close(bent, expected, atol=1e-6, rtol=0)


def test_the_loss_is_a_likelihood(float64):
    """Sheet, check 2."""
    mean, log_var, target = (
        torch.tensor(x) for x in ([[1.0, 2], [0, -1]], [[0.0, -1], [-2, 0.5]], [[1.5, 1], [0.2, -1]])
    )
    assert likelihood_loss(mean, log_var, target).item() == pytest.approx(0.190961, abs=1e-6)
    assert (mean - target).square().mean().item() == pytest.approx(0.3225)


def test_initial_weights_are_a_cut_normal():
    """Sheet, check 5."""
    for fan_in, std, cut_std in ((14, 0.133631, 0.117545), (200, 0.035355, 0.031099)):
        layer = TruncatedNormal((1,), fan_in, 4_000)
        assert layer.std == pytest.approx(std, abs=1e-6)
        initialise(layer, [torch.Generator().manual_seed(0)])
        assert layer.weight.abs().max() <= 2 * layer.std
        assert layer.weight.std().item() == pytest.approx(cut_std, rel=0.02)
        wide = TruncatedNormal((1,), fan_in, 4_000, cut=2.0)
        initialise(wide, [torch.Generator().manual_seed(0)])
        assert wide.weight.std().item() == pytest.approx(std, rel=0.02)
        assert wide.weight.abs().max() > 2.5 * std and not layer.bias.any()


@forms
def test_an_ensemble_begins_with_the_cut_of_its_form(form):
    for layer in training(form, hidden=(100, 100, 100)).ensemble.layers:
        largest = (layer.weight.abs().max() / layer.std).item()
        assert 1.9 < largest <= 2 if form == "ravl" else largest > 2.5


@forms
def test_the_bounds_of_log_variances_begin_at_minus_10_and_0_5(form):
    """Sheet, 2.1."""
    ensemble = training(form).ensemble
    assert ensemble.max_log_var.unique().tolist() == [0.5] and ensemble.min_log_var.unique().tolist() == [-10.0]


@forms
def test_the_loss_adds_decay_and_bounds(form, float64):
    model = training(form)
    rows = model.epoch_rows(1)[..., :16]
    batch = model.data.gather(rows.flatten(1).long())
    obs, action, reward, next_obs = (x.unflatten(1, rows.shape[1:]) for x in batch[:4])
    target = torch.cat([next_obs - obs, reward[..., None]], -1)
    with torch.no_grad():
        for name, bound in (("max_log_var", 0.3), ("min_log_var", -4.0)):
            getattr(model.ensemble, name).copy_(bound + 0.1 * torch.arange(4.0))
        obs[:, :, 0, 0] += 50.0  # beyond the ten standard deviations to which one form clips
        loss = model.loss(obs, action, target)
    expected = torch.zeros(2)
    for run in range(2):
        for member in range(3):
            x = torch.cat([obs[run, member], action[run, member]], -1)
            x = (x - model.ensemble.mean[run, 0]) / model.ensemble.std[run, 0]
            if form == "ravl":
                x = x.clamp(-10, 10)
            for layer, decay in zip(model.ensemble.layers, (2.5e-5, 5e-5, 1e-4), strict=True):
                weight = layer.weight[run, member].detach()
                x = x @ weight + layer.bias[run, member].detach()
                x = x * torch.sigmoid(x) if layer is not model.ensemble.layers[-1] else x
                expected[run] += decay * weight.square().sum() / 2
            mean, log_var = x.chunk(2, -1)
            high, low = (0.3 + 0.1 * torch.arange(4.0)), (-4.0 + 0.1 * torch.arange(4.0))
            log_var = high - torch.log(1 + torch.exp(high - log_var))
            log_var = low + torch.log(1 + torch.exp(log_var - low))
            expected[run] += (log_var + (target[run, member] - mean) ** 2 / log_var.exp()).mean()
        expected[run] += 0.01 * (high.sum() - low.sum())
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)


# -- data --------------------------------------------------------------------------------------------------------------


@forms
def test_each_run_holds_out_a_fifth_and_draws_bootstraps_from_the_rest(form):
    model = training(form)
    assert model.holdout.shape == (2, 12) and model.bootstraps.shape == (2, 3, 52)
    for run in range(2):
        held, drawn = set(model.holdout[run].tolist()), model.bootstraps[run]
        assert len(held) == 12 and not held & set(drawn.flatten().tolist())
        assert all(len(set(member.tolist())) < 52 for member in drawn)  # with replacement
    assert not torch.equal(*model.holdout) and not torch.equal(*model.bootstraps)


def test_the_holdout_of_offlinerl_kit_is_at_most_1000():
    data = at_random(6_000)
    assert training("offlinerl_kit", (0,), data).holdout.shape[1] == 1_000
    assert training("ravl", (0,), data).holdout.shape[1] == 1_200


@forms
def test_members_see_their_bootstraps_in_a_new_order_in_every_epoch(form):
    model = training(form)
    first, again, second = model.epoch_rows(1), model.epoch_rows(1), model.epoch_rows(2)
    assert torch.equal(first, again) and not torch.equal(first, second)
    for rows in (first, second):
        for run in range(2):
            seen = {tuple(member.sort()[0].tolist()) for member in rows[run]}
            assert seen == {tuple(member.sort()[0].tolist()) for member in model.bootstraps[run]}
    theirs = model.bootstraps[0, 0].sort()[0]
    own = [torch.equal(rows[0, 0].sort()[0], theirs) for rows in map(model.epoch_rows, range(30))]
    assert any(own) and all(own) == (form == "offlinerl_kit")


def test_inputs_are_normalised_as_the_official_codes_do():
    data = at_random(200)
    rows, kit = data.rows, training("offlinerl_kit", (0,), data)
    held = set(kit.holdout[0].tolist())
    kept = data.index[[i for i in range(200) if i not in held]]
    x = rows[kept][:, :5].double()
    torch.testing.assert_close(kit.ensemble.mean.flatten().double(), x.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(kit.ensemble.std.flatten().double(), x.std(0, correction=0), atol=1e-6, rtol=0)
    index = torch.tensor([*range(249), *range(250, 399)])  # two trajectories
    ravl = training("ravl", (0,), Dataset("made", rows, index, 3, 2))
    after = torch.cat([rows[:1, :3], rows[index + 1, :3]]).double()
    torch.testing.assert_close(ravl.ensemble.mean.flatten()[:3].double(), after.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(ravl.ensemble.std.flatten()[:3].double(), after.std(0, correction=0), atol=1e-6, rtol=0)
    action = rows[index, 3:5].double()
    torch.testing.assert_close(ravl.ensemble.mean.flatten()[3:].double(), action.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(ravl.ensemble.std.flatten()[3:].double(), action.std(0, correction=0), atol=1e-6, rtol=0)


def test_an_input_that_never_changes_is_not_divided_by_zero():
    """Sheet, table 2.1: OfflineRL-Kit divides it by 1, and RAVL's code by 1e-6."""
    data = at_random()
    data.rows[:, [0, 3]] = 0.7  # a number of states, and one of actions
    assert training("offlinerl_kit", data=data).ensemble.std[..., [0, 3]].unique().tolist() == [1.0]
    assert training("ravl", data=data).ensemble.std[..., [0, 3]].unique().tolist() == [pytest.approx(1e-6)]


def test_terminal_transitions_without_true_next_observations_are_left_out():
    """Sheet, pitfall 1."""
    data = replace(at_random(), true_ends=False)
    terminal = data.terminated[data.index] > 0
    model = training(data=data)
    assert terminal.any() and model.holdout.shape[1] == int(0.2 * (~terminal).sum())
    assert not terminal[model.holdout].any() and not terminal[model.bootstraps.long()].any()
    assert terminal[training().bootstraps.long()].any()


def test_too_few_transitions_are_refused():
    with pytest.raises(UserError, match="has 4 transitions"):
        training(data=at_random(4))


# -- learning ----------------------------------------------------------------------------------------------------------


@forms
def test_runs_together_equal_runs_alone(form, float64):
    together, alone = learn(training(form, (3, 7, 11))), learn(training(form, (7,)))
    for name, tensor in state_of(together).items():
        if tensor.dim():
            torch.testing.assert_close(tensor[1:2], state_of(alone)[name], atol=1e-9, rtol=0, msg=name)


@forms
def test_a_broken_run_leaves_its_neighbours_bitwise_unchanged(form):
    whole, broken = training(form, (0, 1)), training(form, (0, 1))
    with torch.no_grad():
        broken.ensemble.net.out.weight[0, 1] = math.nan
    learn(whole), learn(broken)
    assert not differing(state_of(whole), state_of(broken), 1)
    assert broken.error[0].isnan().all()  # members share the bounds of their variances


def test_a_step_equals_torch_on_one_run(float64):
    """A whole epoch of one run, member by member, with torch's own optimiser."""
    model = training("offlinerl_kit", (5, 6))
    start = {name: tensor[1].detach().clone().requires_grad_() for name, tensor in model.ensemble.named_parameters()}
    adam = torch.optim.Adam(start.values(), lr=1e-3)
    for rows in model.epoch_rows(1).split(16, -1):
        model.update(rows)
        loss = torch.zeros(())
        for member in range(3):
            at = model.data.index[rows[1, member].long()]
            now, after = model.data.rows[at].double(), model.data.rows[at + 1].double()
            x = (now[:, :5] - model.ensemble.mean[1, 0, 0]) / model.ensemble.std[1, 0, 0]
            for layer in ("hidden.0.0", "hidden.1.0", "out"):
                x = x @ start[f"net.{layer}.weight"][member] + start[f"net.{layer}.bias"][member]
                x = torch.nn.functional.silu(x) if layer != "out" else x
            mean, log_var = x.chunk(2, -1)
            high, low = start["max_log_var"][0], start["min_log_var"][0]
            log_var = high - torch.nn.functional.softplus(high - log_var)
            log_var = low + torch.nn.functional.softplus(log_var - low)
            target = torch.cat([after[:, :3] - now[:, :3], now[:, 5:6]], -1)
            loss = loss + (log_var + (target - mean) ** 2 * torch.exp(-log_var)).mean()
        for layer, decay in (("hidden.0.0", 2.5e-5), ("hidden.1.0", 5e-5), ("out", 1e-4)):
            loss = loss + 0.5 * decay * start[f"net.{layer}.weight"].square().sum()
        loss = loss + 0.01 * (start["max_log_var"].sum() - start["min_log_var"].sum())
        adam.zero_grad()
        loss.backward()
        adam.step()
    for name, tensor in model.ensemble.named_parameters():
        torch.testing.assert_close(tensor[1], start[name], atol=1e-9, rtol=0, msg=name)


def with_errors(model, errors):
    """Ends epochs with given holdout errors [R, E] in turn; the state of stopping after each."""
    states = []
    for epoch, values in enumerate(errors, 1):
        model.errors = lambda _, v=values: torch.tensor(v)[..., None].expand(-1, -1, 4)
        model.end_epoch(epoch)
        states.append((model.stopped.tolist(), model.slowed.tolist(), model.rate.tolist()))
    return states


def test_an_ensemble_goes_on_while_any_member_improves():
    model = training("offlinerl_kit", (0,))
    states = with_errors(model, [[[0.9**k, 1.0, 1.0]] for k in range(9)])
    assert not any(stopped[0] for stopped, *_ in states)


def test_layers_decay_by_their_own_factors():
    """Four hidden layers have 2.5e-5, 5e-5 and twice 7.5e-5, further ones the last of these, and the output 1e-4."""
    for depth in (4, 5):
        ensemble = Ensemble(1, 3, 2, Settings(members=2, elites=1, hidden=(4,) * depth))
        with torch.no_grad():
            for layer in ensemble.layers:
                layer.weight.fill_(1.0)
        factors = [2.5e-5, 5e-5, *[7.5e-5] * (depth - 2), 1e-4]
        sizes = [5 * 4, *[4 * 4] * (depth - 1), 4 * 2 * 4]
        expected = sum(0.5 * factor * 2 * size for factor, size in zip(factors, sizes, strict=True))
        assert ensemble.decay().tolist() == pytest.approx([expected])


def test_a_digest_is_of_the_scales_too():
    data = at_random()
    scales = [(torch.zeros(2), factor * torch.ones(2)) for factor in (1.0, 2.0)]
    digests = {digest_of_data(replace(data, action_scaling=scale)) for scale in scales}
    digests |= {digest_of_data(replace(data, obs_scaling=scale, action_scaling=scales[0])) for scale in scales}
    assert len(digests) == 4


def test_offlinerl_kit_stops_each_run_after_five_epochs_without_improvement():
    model = training("offlinerl_kit")
    falling = [[1 - 0.1 * k] * 3 for k in range(9)]
    flat = [[1.0] * 3, *([[0.995, 1.0, 2.0]] * 8)]  # less than 1% better is no improvement
    assert not model.stale.any()
    states = with_errors(model, [[a, b] for a, b in zip(falling, flat, strict=True)])
    assert [stopped for stopped, _, _ in states] == [[False, False]] * 5 + [[False, True]] * 4
    assert model.best_error[1].tolist() == [1.0] * 3


def test_ravl_slows_down_at_its_first_plateau_and_stops_at_one_from_epoch_351_on():
    model = training("ravl", (0,))
    states = with_errors(model, [[[1.0] * 3]] * 352)
    slowed = [s for _, (s,), _ in states]
    assert slowed.index(True) == 5 and all(slowed[5:])  # epoch 1 improves, 2 to 6 do not
    assert states[-1][2] == [pytest.approx(3e-4)] and states[4][2] == [1e-3]
    assert numbers(model.adam.rate(), 1) == [pytest.approx(3e-4)]  # which the steps have
    assert [s for (s,), _, _ in states].index(True) == 350  # epoch 351


def test_the_count_of_epochs_without_improvement_begins_anew_when_the_rate_falls():
    """Sheet, 2.1: a first plateau at epoch 348 stops a run at 353, and not at 351."""
    model = training("ravl", (0,))
    errors = [[[0.98**epoch] * 3] for epoch in range(343)] + [[[1.0] * 3]] * 12
    states = with_errors(model, errors)
    assert [s for _, (s,), _ in states].index(True) == 347
    assert [s for (s,), _, _ in states].index(True) == 352


def test_a_run_that_has_stopped_stands_still():
    model = learn(training())
    before, rows = state_of(model), model.epoch_rows(3)[..., :16]
    model.update(rows, torch.tensor([False, True]))
    after = state_of(model)
    ours = [name for name in differing(before, after, 0) if name != "adam.steps"]
    assert not ours and differing(before, after, 1)


def test_each_member_ends_with_its_best_weights_in_the_order_of_errors():
    model = training()
    snapshots = []
    for epoch in range(1, 31):
        learn(model, 1, epoch)
        snapshots.append({name: p.detach().clone() for name, p in model.ensemble.net.named_parameters()})
    trained = model.trained()
    errors = model.errors(trained).mean(-1)
    torch.testing.assert_close(errors, model.best_error.sort(1)[0])
    best = model.best_error[0].argmin()
    assert any(torch.equal(trained.net.out.weight[0, 0], s["out.weight"][0, best]) for s in snapshots)
    assert not torch.equal(trained.net.out.weight[0, 0], trained.net.out.weight[0, 1])


@forms
def test_holdout_errors_are_means_of_squares_for_each_member_and_output(form, float64):
    data = at_random()
    model = learn(training(form, data=data), epochs=1)
    found = model.errors(model.ensemble)
    assert found.shape == (2, 3, 4)
    for run in range(2):
        rows = data.index[model.holdout[run]]
        now, after = data.rows[rows].double(), data.rows[rows + 1, :3].double()
        change = torch.cat([after - now[:, :3], now[:, 5:6]], -1)
        for member, mean in enumerate(model.ensemble(now[None, :, :3], now[None, :, 3:5])[0][run]):
            torch.testing.assert_close(found[run, member], (mean - change).square().mean(0))
    assert model.batches == len(model.epoch_rows(1).split(model.args.batch_size, -1))


@forms
def test_an_ensemble_learns_linear_dynamics_and_its_intervals_hold(form):
    rng = np.random.default_rng(0)
    obs, action = rng.standard_normal((2_000, 3)), rng.uniform(-1, 1, (2_000, 2))
    noise = 0.1 * rng.standard_normal((2_000, 3))
    data = Dataset.of(obs, action, obs[:, 0] + action[:, 1], obs + 0.3 * obs[:, ::-1] + noise, np.zeros(2_000))
    model = learn(Training(Settings(form=form, hidden=(32, 32), batch_size=64), data, [0]), 15)
    table = model.summary(model.trained())
    assert len(table) == 7 * 4 and {row["output"] for row in table} == {"obs 0", "obs 1", "obs 2", "reward"}
    elites = [row for row in table if row["elite"] and row["output"] != "reward"]
    assert len(elites) == 5 * 3
    assert np.mean([row["error"] for row in elites]) < 0.02  # the noise alone is 0.01
    assert 0.4 < np.mean([row["inside_50"] for row in elites]) < 0.65
    assert 0.82 < np.mean([row["inside_90"] for row in elites]) < 0.97


def test_what_a_broken_ensemble_has_inside_is_unknown():
    model = training(seeds=(0, 1))
    ensemble = learn(model, 1).trained()
    next(ensemble.net.parameters())[0] = torch.nan
    for row in model.summary(ensemble):
        found = np.array([row["error"], row["inside_50"], row["inside_90"]])
        assert (np.isnan(found) if row["seed"] == 0 else np.isfinite(found)).all()


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_gives_each_seed_its_ensemble(tmp_path):
    data = at_random()
    trained = learn(training(seeds=(3, 7, 9), data=data)).trained()
    path = tmp_path / "dynamics.safetensors"
    path.write_bytes(ensemble_file(trained, [3, 7, 9], data))
    loaded = load_ensemble(path, [9, 3, 9], data)
    obs, action = torch.randn(3, 5, 3), torch.randn(3, 5, 2)
    for own, run in enumerate((2, 0, 2)):
        theirs = trained(obs[own].expand(3, -1, -1), action[own].expand(3, -1, -1))
        for a, b in zip(loaded(obs, action), theirs, strict=True):
            torch.testing.assert_close(a[own], b[run])


def test_files_that_do_not_fit_are_refused(tmp_path):
    data, path = at_random(), tmp_path / "dynamics.safetensors"
    path.write_bytes(ensemble_file(training(data=data).trained(), [0, 1], data))
    with pytest.raises(UserError, match="no ensemble for seed 2; it has seeds"):
        load_ensemble(path, [0, 2], data)
    other = at_random(seed=1)
    other.digest = "other"
    with pytest.raises(UserError, match="ensembles of 3 members, and 4 are needed"):
        load_ensemble(path, [0], data, members=4)
    with pytest.raises(UserError, match="learned from arrays, which is another one than --dataset arrays"):
        load_ensemble(path, [0], other)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="is no file of an ensemble"):
        load_ensemble(path, [0], data)


@pytest.mark.parametrize(("obs_size", "act_size", "count"), [(11, 3, 898_992), (17, 6, 928_488)])
def test_the_number_of_parameters_is_that_of_the_sheet(obs_size, act_size, count):
    model = Ensemble(1, obs_size, act_size, Settings())
    assert sum(p.numel() for p in model.parameters()) == count


def test_an_ensemble_of_some_members_is_these_members():
    model = Ensemble(2, 3, 2, Settings(**SMALL))
    initialise(model, [torch.Generator().manual_seed(seed) for seed in (0, 1)])
    obs, action = torch.randn(3, 5, 3), torch.randn(3, 5, 2)
    some = model.selected(torch.tensor([1, 0, 1]), 2)
    whole = model(obs[:1].expand(2, -1, -1), action[:1].expand(2, -1, -1))[0]
    torch.testing.assert_close(some(obs, action)[0][0], whole[1, :2])
