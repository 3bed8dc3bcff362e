import timm
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

augment = transforms.Compose([transforms.RandomResizedCrop(160), transforms.ToTensor()])
loader = DataLoader(datasets.ImageFolder("train", transform=augment), batch_size=32, shuffle=True)
model = timm.create_model("resnet50", pretrained=True, num_classes=1000).to("cuda")
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for _epoch in range(3):
    for images, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(images.to("cuda"))
            loss = criterion(outputs, labels.to("cuda"))
        loss.backward()
        optimizer.step()
        hits = (outputs.argmax(1) == labels.to("cuda")).sum().item()
