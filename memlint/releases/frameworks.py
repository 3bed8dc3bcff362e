"""What a step runs on: torch, accelerate, bitsandbytes.

Each row was read from the library's own code, as published in the releases on both sides of the border.
"""

from __future__ import annotations

from memlint.releases.behaviour import EITHER, LESS, MORE, Behaviour

BEHAVIOURS: dict[str, Behaviour] = {
    "accelerate.fsdp2_widens_frozen_weights": Behaviour(
        "accelerate",
        None,
        (1, 13),
        MORE,
        "FSDP2 with mixed precision brings a whole model in 16 bits to float32, frozen weights included",
        "accelerate/utils/fsdp_utils.py: fsdp2_prepare_model",
    ),
    "accelerate.fsdp2_leaves_what_trains": Behaviour(
        "accelerate",
        (1, 13),
        (1, 14),
        LESS,
        "FSDP2 leaves what trains in 16 bits, though it says otherwise: the float32 copy is thrown away",
        "accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, upcasted_params",
    ),
    "accelerate.fsdp2_reduces_the_last_micro_batch": Behaviour(
        "accelerate",
        (1, 11),
        None,
        MORE,
        "FSDP2 reduces gradients with the last micro-batch of a step alone, as FSDP1 does: until then they are whole",
        "accelerate/accelerator.py: no_sync, set_requires_gradient_sync",
    ),
    "accelerate.fsdp1_trains_in_float32": Behaviour(
        "accelerate",
        (0, 30),
        None,
        MORE,
        "under FSDP1 with mixed precision, what trains is brought to fp32 whatever it was loaded in",
        "accelerate/accelerator.py: prepare_model, upcasted_log",
    ),
    "bitsandbytes.keeps_inputs_of_4_bit_products": Behaviour(
        "bitsandbytes",
        None,
        (0, 43, 2),
        MORE,
        "a product with a 4-bit weight keeps its input, as an attribute that no checkpointing knows of",
        "bitsandbytes/autograd/_functions.py: MatMul4Bit; bitsandbytes-foundation/bitsandbytes#1270",
    ),
    "bitsandbytes.unpacks_in_the_stored_dtype": Behaviour(
        "bitsandbytes",
        None,
        (0, 50),
        MORE,
        "forward, too, unpacks a 4-bit weight in the dtype that it was quantised from, and casts it",
        "bitsandbytes/autograd/_functions.py: MatMul4Bit",
    ),
    "torch.softmax_keeps_its_input": Behaviour(
        "torch", None, (1, 11), MORE, "a softmax keeps its input as well as its output", "pytorch/pytorch#65242"
    ),
    "torch.group_norm_by_batch_norm": Behaviour(
        "torch",
        None,
        (1, 6),
        MORE,
        "a group norm is a batch norm and a product with the weight, which keeps what came between them",
        "pytorch/pytorch#28204",
    ),
    "torch.loads_every_kernel_at_start": Behaviour(
        "torch", None, (1, 13), MORE, "all kernels are loaded with the context", "pytorch/pytorch#86509"
    ),
    "torch.adds_gradients_in_place": Behaviour(
        "torch",
        (2, 0),
        None,
        LESS,
        "the second gradient of a tensor is added to the first one in place, where it made a third one",
        "pytorch/pytorch#88339",
    ),
    "torch.keeps_gradients_as_zeros": Behaviour(
        "torch", None, (2, 0), MORE, "zero_grad writes zeros instead of letting gradients go", "pytorch/pytorch#92731"
    ),
    "torch.has_fused_attention": Behaviour(
        "torch",
        (2, 0),
        None,
        LESS,
        "there is a scaled_dot_product_attention, which libraries take where it is there",
        "torch/nn/functional.py: scaled_dot_product_attention",
    ),
    "torch.foreach_is_a_default": Behaviour(
        "torch",
        (2, 0),
        None,
        MORE,
        "optimizers take the step of all parameters at once, with a list as large as these",
        "torch/optim/optimizer.py: _default_to_fused_or_foreach",
    ),
    "torch.foreach_adam_keeps_roots": Behaviour(
        "torch",
        None,
        (2, 1),
        MORE,
        "a step of foreach Adam or AdamW holds two lists as large as all parameters, of roots and of denominators",
        "torch/optim/adam.py and adamw.py: denom = torch._foreach_add(exp_avg_sq_sqrt, eps)",
    ),
    "torch.fsdp_keeps_frozen_units": Behaviour(
        "torch",
        None,
        (2, 1),
        MORE,
        "FSDP gives a unit of frozen weights back at the end of the backward pass alone",
        "pytorch/pytorch#101982",
    ),
    "torch.rms_norm_2.5": Behaviour(
        "torch", (2, 5), None, MORE, "rms_norm computes in fp32, and keeps what it widened", "pytorch/pytorch#134106"
    ),
    "torch.rms_norm_2.7": Behaviour(
        "torch",
        (2, 7),
        None,
        MORE,
        "rms_norm goes back to its input's dtype once, at its end",
        "pytorch/pytorch#147203",
    ),
    "torch.rms_norm_2.9": Behaviour("torch", (2, 9), None, LESS, "rms_norm is one kernel", "pytorch/pytorch#153666"),
    "torch.rms_norm_2.12": Behaviour(
        "torch",
        (2, 12),
        None,
        EITHER,
        "under autocast rms_norm is computed in fp32, in one kernel whatever its weight's dtype",
        "pytorch/pytorch#174824; ATen/autocast_mode.h: AT_FORALL_FP32",
    ),
    "torch.fused_adamw_is_a_default": Behaviour(
        "torch",
        (2, 8),
        None,
        LESS,
        "transformers' default optimizer is fused from this release of torch on",
        "transformers/training_args.py: default_optim",
    ),
    "torch.sdpa_is_taken": Behaviour(
        "torch",
        (2, 1, 1),
        None,
        LESS,
        "transformers takes SDPA by itself",
        "transformers/utils/import_utils.py: is_torch_sdpa_available",
    ),
}
