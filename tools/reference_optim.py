#!/usr/bin/env python3
"""Writes tests/reference/optimizers.h, trajectories of optimizers in float64, and tests/reference/schedules.h, schedules and averaged
weights, from PyTorch (2.15 or later).

Usage: tools/reference_optim.py optimizers > tests/reference/optimizers.h
       tools/reference_optim.py schedules > tests/reference/schedules.h
"""
import sys

import torch

from reference import START, STEPS, gradients

optim, lr = torch.optim, torch.optim.lr_scheduler


def array(name, rows):
    rows = [[float(v) for v in row] for row in rows]
    print(f"inline constexpr double {name}[{len(rows)}][{len(rows[0])}] = {{")
    for row in rows:
        print("    {" + ", ".join(repr(v) for v in row) + "},")
    print("};")


def trajectory(name, make, **options):
    parameter = torch.nn.Parameter(START.double())
    optimizer = make([parameter], **options)
    rows = []
    for gradient in gradients():
        parameter.grad = gradient.double()
        optimizer.step()
        rows.append(parameter.detach().clone())
    array(name, rows)


def wave(shape, phase):
    """Values that tests/optim/optim_in_ops_test.cpp makes by the same formula."""
    return torch.sin(1.3 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + phase).reshape(shape)


def shaped_trajectory(name, make, shape, **options):
    """A parameter of any shape, one row per step."""
    parameter = torch.nn.Parameter(wave(shape, 0.5))
    optimizer = make([parameter], **options)
    rows = []
    for t in range(STEPS):
        parameter.grad = wave(shape, t + 2.0) * (0.3 + t)
        optimizer.step()
        rows.append(parameter.detach().flatten().clone())
    array(name, rows)


def lbfgs(name, **options):
    """Parameters, losses and evaluations on the function that tests/optim/lbfgs_test.cpp minimises, one row per step."""
    x, y = torch.nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64)), torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    optimizer = optim.LBFGS([x, y], **options)
    sign = -1.0 if options.get("maximize") else 1.0

    def closure():
        optimizer.zero_grad()
        loss = sign * (10 * (x[1] - x[0].square()).square() + (1 - x[0]).square() + (x[0] - y).square().square())
        loss.backward()
        return loss
    rows = []
    for _ in range(4):
        loss = optimizer.step(closure)
        rows.append([*x.tolist(), y.item(), loss.item(), optimizer.state[x]["func_evals"]])
    array(name, rows)


def lbfgs_kinks(name, count):
    """Evaluations, loss and parameters after two steps on functions with kinks, one row per function."""
    rows = []
    for seed in range(count):
        i = torch.arange(19, dtype=torch.float64)
        values = torch.sin(1.7 * i * i + 3.1 * seed + i)
        a, b = values[:12].reshape(4, 3), values[12:16]
        x = torch.nn.Parameter(values[16:] * 3)
        optimizer = optim.LBFGS([x], lr=5 if seed % 4 == 0 else 1, max_iter=8, history_size=4, line_search_fn="strong_wolfe")
        evaluations = 0

        def closure():
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            loss = (a @ x - b).abs().pow((1.05, 1.5, 3)[seed % 3]).sum() + 0.1 * x.exp().sum()
            loss.backward()
            return loss
        losses = [optimizer.step(closure).item() for _ in range(2)]
        rows.append([evaluations, losses[1], *x.tolist()])
    array(name, rows)


def rates(name, make, steps, options=("lr",), **settings):
    optimizer = optim.SGD([torch.nn.Parameter(START.clone())], lr=0.5, momentum=0.9)
    scheduler = make(optimizer, **settings)
    rows = [[optimizer.param_groups[0][option]] for option in options]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        for row, option in zip(rows, options):
            row.append(optimizer.param_groups[0][option])
    array(name, rows)


METRICS = [1.0, 0.8, 0.81, 0.79995, 0.9, 0.7, 0.7, 0.7, 0.7, 0.7, 0.6, 0.65, 0.65, 0.65, 0.65, 0.65]


def plateau(name, **settings):
    optimizer = optim.SGD([torch.nn.Parameter(START.clone())], lr=0.5)
    scheduler = lr.ReduceLROnPlateau(optimizer, **settings)
    row = []
    for metric in METRICS:
        scheduler.step(metric)
        row.append(optimizer.param_groups[0]["lr"])
    array(name, [row])


def averaged(name, **settings):
    module = torch.nn.Linear(5, 1, bias=False, dtype=torch.float64)
    model = optim.swa_utils.AveragedModel(module, **settings)
    rows = []
    for gradient in gradients():
        module.weight.data.copy_(gradient.double())
        model.update_parameters(module)
        rows.append(next(model.parameters()).detach().clone().flatten())
    array(name, rows)


def optimizers():
    trajectory("adam_amsgrad", optim.Adam, lr=0.05, amsgrad=True, weight_decay=0.1, betas=(0.8, 0.5))
    trajectory("adamw_amsgrad", optim.AdamW, lr=0.05, amsgrad=True, weight_decay=0.3, betas=(0.8, 0.5), maximize=True)
    trajectory("rmsprop", optim.RMSprop, lr=0.05)
    trajectory("rmsprop_momentum", optim.RMSprop, lr=0.05, alpha=0.8, momentum=0.7, weight_decay=0.1)
    trajectory("rmsprop_centered", optim.RMSprop, lr=0.02, alpha=0.9, eps=1e-4, centered=True, maximize=True)
    trajectory("rmsprop_both", optim.RMSprop, lr=0.02, alpha=0.7, centered=True, momentum=0.5)
    trajectory("adagrad", optim.Adagrad, lr=0.1)
    trajectory("adagrad_decay", optim.Adagrad, lr=0.1, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3)
    trajectory("adagrad_maximize", optim.Adagrad, lr=0.1, maximize=True)
    trajectory("nadam", optim.NAdam, lr=0.05)
    trajectory("nadam_decay", optim.NAdam, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, momentum_decay=0.3)
    trajectory("nadam_decoupled", optim.NAdam, lr=0.05, weight_decay=0.2, decoupled_weight_decay=True, maximize=True)
    torch.set_default_dtype(torch.float64)  # the dtype of ASGD's eta
    trajectory("radam", optim.RAdam, lr=0.05)
    trajectory("radam_decay", optim.RAdam, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)
    trajectory("radam_decoupled", optim.RAdam, lr=0.05, betas=(0.9, 0.9), weight_decay=0.2, decoupled_weight_decay=True, maximize=True)
    trajectory("adamax", optim.Adamax, lr=0.05)
    trajectory("adamax_decay", optim.Adamax, lr=0.05, betas=(0.8, 0.5), eps=1e-3, weight_decay=0.1, maximize=True)
    trajectory("adadelta", optim.Adadelta)
    trajectory("adadelta_decay", optim.Adadelta, lr=0.5, rho=0.7, eps=1e-2, weight_decay=0.1, maximize=True)
    trajectory("asgd", optim.ASGD, lr=0.1)
    trajectory("asgd_decay", optim.ASGD, lr=0.1, lambd=0.2, alpha=0.6, t0=3, weight_decay=0.1, maximize=True)
    trajectory("rprop", optim.Rprop)
    trajectory("rprop_bounds", optim.Rprop, lr=0.05, etas=(0.4, 1.7), step_sizes=(0.03, 0.09), maximize=True)
    trajectory("adafactor", optim.Adafactor, lr=0.1)
    trajectory("adafactor_decay", optim.Adafactor, lr=0.5, beta2_decay=-0.5, eps=(1e-2, 0.05), d=1.5, weight_decay=0.1, maximize=True)
    torch.set_default_dtype(torch.float32)
    shaped_trajectory("adafactor_matrix", optim.Adafactor, (2, 3), lr=0.1)
    shaped_trajectory("adafactor_stack", optim.Adafactor, (2, 3, 2), lr=0.3, d=1.2, weight_decay=0.1)
    shaped_trajectory("muon_wide", optim.Muon, (3, 5), lr=0.1)
    shaped_trajectory("muon_tall", optim.Muon, (5, 3), lr=0.1, weight_decay=0.3, momentum=0.8, nesterov=False)
    shaped_trajectory("muon_rms", optim.Muon, (4, 2), lr=0.1, adjust_lr_fn="match_rms_adamw", ns_steps=3)
    shaped_trajectory("muon_unclamped", optim.Muon, (2, 4), lr=0.1, adjust_lr_fn="spectral_unclamped", ns_coefficients=(2.0, -1.5, 0.5))
    lbfgs("lbfgs", lr=0.1)
    lbfgs("lbfgs_short", lr=0.3, max_iter=5, history_size=2, maximize=True)
    lbfgs("lbfgs_wolfe", max_iter=4, line_search_fn="strong_wolfe")
    lbfgs("lbfgs_wolfe_slow", lr=1e-3, max_iter=6, line_search_fn="strong_wolfe")
    lbfgs("lbfgs_wolfe_far", lr=50, max_iter=6, line_search_fn="strong_wolfe")
    lbfgs_kinks("lbfgs_kinks", 12)
    lbfgs("lbfgs_wolfe_short", max_iter=6, max_eval=5, history_size=3, line_search_fn="strong_wolfe")


def schedules():
    rates("multi_step", lr.MultiStepLR, 9, milestones=[7, 2, 4, 4], gamma=0.5)
    rates("constant", lr.ConstantLR, 7)
    rates("linear", lr.LinearLR, 8, start_factor=0.2, end_factor=0.7, total_iters=6)
    rates("polynomial", lr.PolynomialLR, 8, total_iters=6, power=1.7)
    rates("multiplicative", lr.MultiplicativeLR, 6, lr_lambda=lambda t: 1 - 0.05 * t)
    rates("cyclic", lr.CyclicLR, 14, ("lr", "momentum"), base_lr=0.1, max_lr=0.9, step_size_up=3, step_size_down=2)
    rates("cyclic_halved", lr.CyclicLR, 14, ("lr", "momentum"), base_lr=0.1, max_lr=0.9, step_size_up=3, mode="triangular2",
          base_momentum=0.5, max_momentum=0.7)
    rates("cyclic_range", lr.CyclicLR, 14, base_lr=0.1, max_lr=0.9, step_size_up=4, mode="exp_range", gamma=0.9, cycle_momentum=False)
    rates("cyclic_function", lr.CyclicLR, 14, base_lr=0.1, max_lr=0.9, step_size_up=4, scale_fn=lambda x: 1 / (1 + x),
          scale_mode="iterations", cycle_momentum=False)
    rates("swa", optim.swa_utils.SWALR, 8, swa_lr=0.05, anneal_epochs=5)
    rates("swa_linear", optim.swa_utils.SWALR, 8, swa_lr=0.05, anneal_epochs=5, anneal_strategy="linear")
    rates("warm_restarts", lr.CosineAnnealingWarmRestarts, 16, T_0=3, T_mult=2, eta_min=0.05)
    rates("warm_restarts_equal", lr.CosineAnnealingWarmRestarts, 9, T_0=4)
    rates("one_cycle", lr.OneCycleLR, 11, ("lr", "momentum"), max_lr=2.0, total_steps=12)
    rates("one_cycle_linear", lr.OneCycleLR, 14, ("lr", "momentum"), max_lr=2.0, total_steps=15, anneal_strategy="linear",
          pct_start=0.4, div_factor=10, final_div_factor=100, three_phase=True, base_momentum=0.7, max_momentum=0.9)
    rates("sequential", lambda o: lr.SequentialLR(o, [lr.ExponentialLR(o, 0.5), lr.StepLR(o, 2, 0.1), lr.ExponentialLR(o, 0.9)],
                                                  [3, 7]), 11)
    rates("chained", lambda o: lr.ChainedScheduler([lr.ExponentialLR(o, 0.9), lr.StepLR(o, 3, 0.5)]), 9)
    array("plateau_metrics", [METRICS])
    plateau("plateau", factor=0.5, patience=1)
    plateau("plateau_max", mode="max", factor=0.1, patience=2, threshold=0.05, threshold_mode="abs", cooldown=2, min_lr=0.01)
    averaged("average")
    averaged("average_ema", multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.8))


def main():
    print("// Written by tools/reference_optim.py with PyTorch " + torch.__version__.split("+")[0] + "; do not edit.")
    print("#pragma once\n\nnamespace reference {\n")
    {"optimizers": optimizers, "schedules": schedules}[sys.argv[1]]()
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
