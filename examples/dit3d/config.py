"""Text-to-sign-language diffusion with DiT3D: every setting of a training run, tuned for a 16 GB card.

Imported as `from config import Config`; nothing is instantiated.
"""

import torch


class Config:
    # -- data
    DATA_ROOT = "training_data"
    BATCH_SIZE = 1  # was 2
    NUM_WORKERS = 2
    INPUT_SHAPE = (3, 16, 64, 64)  # (channels, frames, height, width); was (3, 28, 128, 128)
    NUM_FRAMES = INPUT_SHAPE[1]
    IMAGE_SIZE = INPUT_SHAPE[-1]

    # -- model
    MODEL_ARCHITECTURE = "dit3d"  # unet3d, vit3d, dit3d or vivit

    UNET_DIM = 16
    UNET_DIM_MULTS = (1, 2)
    UNET_CHANNELS = 3
    UNET_TIME_DIM = UNET_DIM * 4

    VIT_EMBED_DIM = 768
    VIT_TIME_DIM = 768
    VIT_FREEZE_BACKBONE = True

    DIT_MODEL_SIZE = "DiT3D-Tiny/4"  # XS 192 wide, Tiny 256, S 384, B 768, L 1024, XL 1152
    DIT_VIDEO_SIZE = (NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE)
    DIT_PATCH_SIZE = (4, 16, 16)  # (frames, height, width): tokens span frames. One number: every frame by itself
    DIT_LEARN_SIGMA = False
    DIT_CLASS_DROPOUT_PROB = 0.1
    DIT_FREEZE_BACKBONE = False
    DIT_FUSED_ATTENTION = False  # True: the probabilities are not kept
    DIT_GRADIENT_CHECKPOINTING = False  # True: each block is recomputed in backward

    # -- text
    TEXT_ENCODER_MODEL = "distilbert-base-uncased"  # None: the data set holds text features already
    TEXT_EMBED_DIM = 768
    TEXT_MAX_LENGTH = 77
    TEXT_FREEZE_BACKBONE = True

    # -- diffusion
    TIMESTEPS = 1000
    NOISE_SCHEDULER = "cosine"
    COSINE_S = 0.008

    # -- training
    LEARNING_RATE = 1e-4
    NUM_EPOCHS = 500
    GRADIENT_CLIP = 1.0
    GRADIENT_ACCUMULATION_STEPS = 2
    USE_AMP = False  # True: float16 autocast with a gradient scaler
    OPTIMIZER_TYPE = "adamw"
    WEIGHT_DECAY = 0.01
    ADAM_BETAS = (0.9, 0.999)
    USE_SCHEDULER = True
    DEVICE = torch.device(
        "mps" if torch.backends.mps.is_available() else "cuda" if torch.cuda.is_available() else "cpu"
    )

    # -- logging
    EXPERIMENT_NAME = "text2sign_dit3d_tiny"
    LOG_DIR = f"logs/{EXPERIMENT_NAME}"
    CHECKPOINT_DIR = f"checkpoints/{EXPERIMENT_NAME}"
    SAMPLES_DIR = f"samples/{EXPERIMENT_NAME}"
    SAMPLE_EVERY_EPOCHS = 5
    NUM_SAMPLES = 2
    ENABLE_GRADIENT_HISTOGRAMS = True
    LOG_MODEL_GRAPH = False

    @classmethod
    def effective_batch_size(cls):
        return cls.BATCH_SIZE * cls.GRADIENT_ACCUMULATION_STEPS
