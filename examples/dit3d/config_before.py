"""Text-to-sign-language diffusion with DiT3D, before it was made to fit a 16 GB card."""

import torch


class Config:
    # -- data
    DATA_ROOT = "training_data"
    BATCH_SIZE = 2
    NUM_WORKERS = 2
    INPUT_SHAPE = (3, 28, 128, 128)  # (channels, frames, height, width)
    NUM_FRAMES = 28
    IMAGE_SIZE = 128

    # -- model
    MODEL_ARCHITECTURE = "dit3d"

    UNET_DIM = 64
    UNET_DIM_MULTS = (1, 2, 4)
    UNET_CHANNELS = 3

    DIT_MODEL_SIZE = "DiT3D-XL/2"  # 1152 wide, 28 blocks
    DIT_VIDEO_SIZE = (28, 128, 128)
    DIT_PATCH_SIZE = (2, 16, 16)  # 14 x 8 x 8 = 896 tokens
    DIT_LEARN_SIGMA = True
    DIT_CLASS_DROPOUT_PROB = 0.1
    DIT_FREEZE_BACKBONE = False
    DIT_FUSED_ATTENTION = False  # True: the probabilities are not kept
    DIT_GRADIENT_CHECKPOINTING = False  # True: each block is recomputed in backward

    # -- text
    TEXT_ENCODER_MODEL = "distilbert-base-uncased"
    TEXT_EMBED_DIM = 768
    TEXT_MAX_LENGTH = 77
    TEXT_FREEZE_BACKBONE = True

    # -- diffusion
    TIMESTEPS = 1000
    NOISE_SCHEDULER = "cosine"

    # -- training
    LEARNING_RATE = 1e-4
    NUM_EPOCHS = 500
    GRADIENT_CLIP = 1.0
    GRADIENT_ACCUMULATION_STEPS = 1
    USE_AMP = False  # True: float16 autocast with a gradient scaler
    OPTIMIZER_TYPE = "adamw"
    WEIGHT_DECAY = 0.01
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # -- logging
    EXPERIMENT_NAME = "text2sign_dit3d_xl"
    LOG_DIR = f"logs/{EXPERIMENT_NAME}"
    NUM_SAMPLES = 2
