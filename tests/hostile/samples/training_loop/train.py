import torch
from peft import LoraConfig, get_peft_model
from torch.optim import AdamW
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "HuggingFaceTB/SmolLM2-135M"

tokenizer = AutoTokenizer.from_pretrained(MODEL)


def collate(rows):
    texts = [row["text"] for row in rows]
    batch = tokenizer(texts, max_length=512, truncation=True, padding="max_length", return_tensors="pt")
    batch["labels"] = batch["input_ids"].clone()
    return batch


def main(accumulation=2):
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).to("cuda")
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    loader = DataLoader([{"text": "a sample"}], batch_size=4, collate_fn=collate)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0001, weight_decay=0.01)
    for _epoch in range(3):
        for step, batch in enumerate(tqdm(loader)):
            batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                outputs = model(**batch)
                loss = outputs.loss / accumulation
            loss.backward()
            if (step + 1) % accumulation == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
