from xtuner.v1.model import Qwen3Dense8BConfig

model = Qwen3Dense8BConfig(num_hidden_layers=3, hidden_size=512)
