"""An MLP trained on random data in epochs, with momentum: a snapshot of it has two tensors of each size."""

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--widths", type=int, nargs="+", required=True, help="of the MLP's layers, input first")
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(0)
layers = [(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(args.widths)]
model: nn.Module = nn.Sequential(*[module for pair in layers for module in pair][:-1])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
data = TensorDataset(torch.randn(args.samples, args.widths[0]), torch.randn(args.samples, args.widths[-1]))
loader = DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs)
for _ in range(args.epochs):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
