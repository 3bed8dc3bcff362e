"""A timm model tuned on images, as the benchmark that the source names does it."""

import argparse

import bitsandbytes as bnb
import datasets
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchao.prototype import low_bit_optim
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--optim", default="AdamW")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()

transforms = v2.Compose(
    [
        v2.ToImage(),
        v2.RandomResizedCrop(224),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)
images = datasets.load_dataset("timm/resisc45", split="train").select_columns(["image", "label"])
images.set_transform(lambda rows: dict(image=transforms(rows["image"]), label=rows["label"]))
loader = DataLoader(images, batch_size=args.batch_size, shuffle=True, num_workers=4, pin_memory=True, drop_last=True)

model = timm.create_model(args.model, pretrained=True, num_classes=45)
model.cuda()
if args.compile:
    model.compile(fullgraph=True)

if args.optim == "AdamW":
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
elif args.optim == "AdamW8bitBnb":
    optim = bnb.optim.AdamW8bit(model.parameters(), lr=1e-4, weight_decay=0)
else:
    optim = low_bit_optim.AdamW4bit(model.parameters(), lr=1e-4, weight_decay=0)

model.train()
for batch in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(batch["image"].cuda()), batch["label"].cuda())
    loss.backward()
    optim.step()
    optim.zero_grad()
