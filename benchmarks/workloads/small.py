"""A small classifier on random data, so many epochs over so many samples: for runs whose steps are padded."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=3200)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=16, help="samples in each")
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(args.samples, 16), torch.randint(0, 4, (args.samples,)))
loader = DataLoader(data, batch_size=args.batch, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs)
for _ in range(args.epochs):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
