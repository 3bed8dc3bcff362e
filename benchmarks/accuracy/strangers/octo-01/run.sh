git clone https://github.com/facebookresearch/llama-recipes && cd llama-recipes
git checkout 2e768b1
pip install .
mkdir models
ln -s /dev/shm/llama-2-7b-hf models/7B
time python -m llama_recipes.finetuning  \
  --use_peft --peft_method lora --quantization \
  --model_name models/7B --output_dir /dev/shm/PEFT/model/
