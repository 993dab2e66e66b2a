"""export.py - a checkpoint of train.py to model.safetensors (the averaged weights, bf16).

    python3 export.py RUN.pt ../model/model.safetensors [--last]

--last takes the weights as trained instead of their average. The other files of the model folder are constant
(config.json, tokenizer_config.json, generation_config.json) or made by tokenizer.py (tokenizer.json)."""
import sys

import torch

from model import Model, save_safetensors


def main(checkpoint, out_path, *flags):
    state = torch.load(checkpoint)
    model = Model()
    model.load_state_dict(state["model" if "--last" in flags else "average"])
    save_safetensors(model, out_path)
    print("step %d, %.1f M tokens, %.0f s of training -> %s" % (
        state["step_count"], state["n_tokens"] / 1e6, state["seconds"], out_path))


if __name__ == "__main__":
    main(*sys.argv[1:])
