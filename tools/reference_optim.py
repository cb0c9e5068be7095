#!/usr/bin/env python3
"""Writes tests/reference/optimizers.h: trajectories of optimizers in float64, schedules, and averaged weights from PyTorch (2.1 or later).

Usage: tools/reference_optim.py > tests/reference/optimizers.h
"""
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


def main():
    print("// Written by tools/reference_optim.py with PyTorch " + torch.__version__.split("+")[0] + "; do not edit.")
    print("#pragma once\n\nnamespace reference {\n")
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
    print("\n}  // namespace reference")


if __name__ == "__main__":
    main()
