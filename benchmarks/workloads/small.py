"""A small classifier on random data, so many epochs over so many samples: for runs whose steps are padded."""

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=3200)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=16, help="samples in each")
parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 4], help="of the layers, input first")
parser.add_argument("--log", action="store_true", help="log the loss of each step")
parser.add_argument("--adam", action="store_true", help="in the place of SGD with momentum")
args = parser.parse_args()

torch.manual_seed(0)
layers = [(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(args.widths)]
model: nn.Module = nn.Sequential(*[module for pair in layers for module in pair][:-1])
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
if args.adam:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(args.samples, args.widths[0]), torch.randint(0, args.widths[-1], (args.samples,)))
loader = DataLoader(data, batch_size=args.batch, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs)
for _ in range(args.epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.log:
            paceline.log(loss=loss.item())
