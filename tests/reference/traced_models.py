"""Models of presets/traced.toml that no library builds by a name: each function returns a module
and example inputs, as `memplan trace FILE.py:FUNCTION` takes them.

Those of diffusers have the published config of their transformer or U-Net; the others are written
after their papers, in as many lines as that takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, torch.Tensor]]


class Denoiser(nn.Module):
    """A denoiser with the loss of its training: mean square distance to the noise, or to the
    velocity, that was put in."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        made = self.model(**inputs, return_dict=False)[0]
        return functional.mse_loss(made.float(), torch.empty_like(made).float())


def _checked(model: Any, parameters: int) -> Any:
    """The model, whose parameters are those of the published one."""
    assert sum(p.numel() for p in model.parameters()) == parameters
    return model


def _stable_diffusion_3_5(layers: int, positions: int, **more: Any) -> Built:
    """A transformer with as many heads of 64 as it has layers."""
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=layers,
        attention_head_dim=64, num_attention_heads=layers, joint_attention_dim=4096,
        caption_projection_dim=64 * layers, pooled_projection_dim=2048,
        pos_embed_max_size=positions, qk_norm="rms_norm", **more,
    )  # fmt: skip
    return Denoiser(model), {
        "hidden_states": torch.zeros(2, 16, 64, 64),
        "encoder_hidden_states": torch.zeros(2, 77, 4096),
        "pooled_projections": torch.zeros(2, 2048),
        "timestep": torch.zeros(2),
    }


def stable_diffusion_3_5_large() -> Built:
    """stabilityai/stable-diffusion-3.5-large, transformer/config.json."""
    return _stable_diffusion_3_5(38, 192)


def stable_diffusion_3_5_medium() -> Built:
    """stabilityai/stable-diffusion-3.5-medium, transformer/config.json."""
    return _stable_diffusion_3_5(24, 384, dual_attention_layers=tuple(range(13)))


def sdxl_vae() -> Built:
    """stabilityai/sdxl-vae, config.json: encoder and decoder, as a VAE is trained."""
    from diffusers import AutoencoderKL

    class Reconstructs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            four = range(4)
            model = AutoencoderKL(
                down_block_types=tuple("DownEncoderBlock2D" for _ in four),
                up_block_types=tuple("UpDecoderBlock2D" for _ in four),
                block_out_channels=(128, 256, 512, 512), layers_per_block=2, sample_size=1024,
            )  # fmt: skip
            self.model = _checked(model, 83_653_863)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            made = self.model(image, sample_posterior=True).sample
            return functional.mse_loss(made.float(), image.float())

    return Reconstructs(), {"image": torch.zeros(2, 3, 256, 256)}


def flux_1_dev() -> Built:
    """black-forest-labs/FLUX.1-dev, transformer/config.json."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(guidance_embeds=True)
    return Denoiser(model), {
        "hidden_states": torch.zeros(2, 96, 64),
        "encoder_hidden_states": torch.zeros(2, 77, 4096),
        "pooled_projections": torch.zeros(2, 768),
        "timestep": torch.zeros(2),
        "img_ids": torch.zeros(96, 3),
        "txt_ids": torch.zeros(77, 3),
        "guidance": torch.zeros(2),
    }


def sdxl() -> Built:
    """stabilityai/stable-diffusion-xl-base-1.0, unet/config.json."""
    from diffusers import UNet2DConditionModel

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = UNet2DConditionModel(
                sample_size=128, cross_attention_dim=2048, use_linear_projection=True,
                block_out_channels=(320, 640, 1280), attention_head_dim=(5, 10, 20),
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                transformer_layers_per_block=(1, 2, 10), addition_embed_type="text_time",
                addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
            )  # fmt: skip

        def forward(
            self, sample: Any, timestep: Any, text: Any, pooled: Any, time_ids: Any
        ) -> torch.Tensor:
            more = {"text_embeds": pooled, "time_ids": time_ids}
            made = self.model(sample, timestep, text, added_cond_kwargs=more, return_dict=False)[0]
            return functional.mse_loss(made.float(), torch.empty_like(made).float())

    return UNet(), {
        "sample": torch.zeros(2, 4, 64, 64),
        "timestep": torch.zeros(2),
        "text": torch.zeros(2, 77, 2048),
        "pooled": torch.zeros(2, 1280),
        "time_ids": torch.zeros(2, 6),
    }


def _wan(heads: int, ffn: int, layers: int) -> Built:
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=heads, attention_head_dim=128, in_channels=16,
        out_channels=16, text_dim=4096, freq_dim=256, ffn_dim=ffn, num_layers=layers,
        cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_max_seq_len=1024,
    )  # fmt: skip
    return Denoiser(model), {
        "hidden_states": torch.zeros(2, 16, 5, 16, 16),
        "timestep": torch.zeros(2),
        "encoder_hidden_states": torch.zeros(2, 512, 4096),
    }


def wan_2_1_1_3b() -> Built:
    """Wan-AI/Wan2.1-T2V-1.3B-Diffusers, transformer/config.json."""
    return _wan(12, 8960, 30)


def wan_2_1_14b() -> Built:
    """Wan-AI/Wan2.1-T2V-14B-Diffusers, transformer/config.json."""
    return _wan(40, 13_824, 40)


# --- nnU-Net -------------------------------------------------------------------------------------


class _Stage(nn.Sequential):
    """Two convolutions, each with instance norm and leaky ReLU; the first one strides."""

    def __init__(self, dims: int, before: int, after: int, stride: int):
        conv = (nn.Conv2d, nn.Conv3d)[dims - 2]
        norm = (nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 2]
        of = []
        for inner, step in ((before, stride), (after, 1)):
            of += [conv(inner, after, 3, step, 1), norm(after, affine=True)]
            of += [nn.LeakyReLU(0.01, inplace=True)]
        super().__init__(*of)


class PlainUNet(nn.Module):
    """nnU-Net's PlainConvUNet with deep supervision; the loss is cross entropy plus soft Dice of
    each resolution but the lowest."""

    def __init__(self, dims: int, features: list[int], channels: int, classes: int):
        super().__init__()
        up = (nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 2]
        conv = (nn.Conv2d, nn.Conv3d)[dims - 2]
        pairs = list(zip([channels, *features], features, strict=False))
        self.down = nn.ModuleList(
            _Stage(dims, a, b, 2 if i else 1) for i, (a, b) in enumerate(pairs)
        )
        higher = list(zip(features[::-1], features[-2::-1], strict=False))
        self.up = nn.ModuleList(up(a, b, 2, 2) for a, b in higher)
        self.join = nn.ModuleList(_Stage(dims, 2 * b, b, 1) for _, b in higher)
        self.heads = nn.ModuleList(conv(b, classes, 1) for _, b in higher)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skips = []
        for stage in self.down:
            image = stage(image)
            skips.append(image)
        skips.pop()
        losses = []
        for up, join, head in zip(self.up, self.join, self.heads, strict=True):
            image = join(torch.cat((up(image), skips.pop()), 1))
            losses.append(self._loss(head(image)))
        return torch.stack(losses[1:]).sum()

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        batch, _, *space = logits.shape
        labels = torch.zeros((batch, *space), dtype=torch.long, device=logits.device)
        probabilities = logits.softmax(1)
        axes = list(range(2, logits.dim()))
        truth = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], True)
        overlap = (probabilities * truth).sum(axes)
        dice = 2 * overlap / (probabilities.sum(axes) + truth.sum(axes)).clamp_min(1e-8)
        return functional.cross_entropy(logits, labels) - dice.mean()


def nnunet_2d() -> Built:
    """nnU-Net v2, 2d: 8 stages for a patch of 512 x 512, at most 512 features."""
    features = [32, 64, 128, 256, 512, 512, 512, 512]
    return PlainUNet(2, features, 1, 4), {"image": torch.zeros(2, 1, 256, 256)}


def nnunet_3d() -> Built:
    """nnU-Net v2, 3d_fullres: 6 stages for a patch of 128 x 128 x 128, at most 320 features."""
    features = [32, 64, 128, 256, 320, 320]
    return PlainUNet(3, features, 1, 4), {"image": torch.zeros(2, 1, 64, 64, 64)}


# --- a detector ----------------------------------------------------------------------------------


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(inplace=True),
    )


class _Split(nn.Module):
    """Half of the channels pass through residual blocks; all that were on the way are joined."""

    def __init__(self, before: int, after: int, blocks: int, residual: bool = True):
        super().__init__()
        half, self.residual = after // 2, residual
        self.first = _conv(before, after, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv(half, half), _conv(half, half)) for _ in range(blocks)
        )
        self.last = _conv((2 + blocks) * half, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(made + parts[-1] if self.residual else made)
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """A detector of one stage in the shape of YOLOv8 m: a backbone of split stages, features joined
    upwards and downwards, and at three strides a head for boxes and one for classes.

    The loss is that of the heads alone (binary cross entropy of classes, mean square of boxes);
    which cells are matched with which boxes is not traced: its size depends on the data.
    """

    def __init__(self, classes: int = 80):
        super().__init__()
        w = [48, 96, 192, 384, 576]
        self.stem = nn.Sequential(
            _conv(3, w[0], 3, 2), _conv(w[0], w[1], 3, 2), _Split(w[1], w[1], 2)
        )
        self.third = nn.Sequential(_conv(w[1], w[2], 3, 2), _Split(w[2], w[2], 4))
        self.fourth = nn.Sequential(_conv(w[2], w[3], 3, 2), _Split(w[3], w[3], 4))
        self.fifth = nn.Sequential(_conv(w[3], w[4], 3, 2), _Split(w[4], w[4], 2))
        self.up4 = _Split(w[4] + w[3], w[3], 2, False)
        self.up3 = _Split(w[3] + w[2], w[2], 2, False)
        self.down3, self.down4 = _conv(w[2], w[2], 3, 2), _conv(w[3], w[3], 3, 2)
        self.join4 = _Split(w[2] + w[3], w[3], 2, False)
        self.join5 = _Split(w[3] + w[4], w[4], 2, False)
        wide = ((w[2], 64, 64), (w[3], 64, 64), (w[4], 64, 64))
        self.boxes = nn.ModuleList(self._head(a, b, c) for a, b, c in wide)
        self.classes = nn.ModuleList(self._head(a, w[2], classes) for a in w[2:])

    def _head(self, before: int, inner: int, after: int) -> nn.Sequential:
        return nn.Sequential(_conv(before, inner), _conv(inner, inner), nn.Conv2d(inner, after, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        third = self.third(self.stem(image))
        fourth = self.fourth(third)
        fifth = self.fifth(fourth)
        up4 = self.up4(torch.cat((functional.interpolate(fifth, scale_factor=2.0), fourth), 1))
        up3 = self.up3(torch.cat((functional.interpolate(up4, scale_factor=2.0), third), 1))
        join4 = self.join4(torch.cat((self.down3(up3), up4), 1))
        join5 = self.join5(torch.cat((self.down4(join4), fifth), 1))
        losses = []
        for x, boxes, classes in zip((up3, join4, join5), self.boxes, self.classes, strict=True):
            told = classes(x)
            losses.append(functional.binary_cross_entropy_with_logits(told, torch.empty_like(told)))
            losses.append(boxes(x).pow(2).mean())
        return torch.stack(losses).sum()


def detector() -> Built:
    return Detector(), {"image": torch.zeros(2, 3, 320, 320)}


# --- science -------------------------------------------------------------------------------------


class FourierLayer(nn.Module):
    """Low frequencies times a weight each, and a convolution of single places."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        self.spectral = nn.Parameter(torch.empty(2, width, width, modes, modes, 2))
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum, w = torch.fft.rfft2(x), torch.view_as_complex(self.spectral)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], w[0])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], w[1])
        return functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


class FourierOperator(nn.Module):
    """The Fourier neural operator of Li et al. 2020, in two dimensions (modes 12, width 32)."""

    def __init__(self, channels: int = 3, width: int = 32, modes: int = 12, layers: int = 4):
        super().__init__()
        self.lift = nn.Conv2d(channels, width, 1)
        self.layers = nn.ModuleList(FourierLayer(width, modes) for _ in range(layers))
        self.out = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        x = self.lift(field)
        for layer in self.layers:
            x = layer(x)
        return self.out(x).pow(2).mean()


def fno_2d() -> Built:
    return FourierOperator(), {"field": torch.zeros(2, 3, 64, 64)}


def _mlp(before: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(before, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.LayerNorm(width),
    )  # fmt: skip


class _Messages(nn.Module):
    """A step of messages: edges hear of the nodes at their ends, nodes of the edges they are at."""

    def __init__(self, width: int):
        super().__init__()
        self.edge, self.node = _mlp(3 * width, width), _mlp(2 * width, width)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        edges = edges + self.edge(torch.cat((edges, nodes[source], nodes[target]), 1))
        seen = torch.zeros_like(nodes).index_add(0, target, edges)
        return nodes + self.node(torch.cat((nodes, seen), 1)), edges


class MeshGraphNet(nn.Module):
    """The network of Pfaff et al. 2021: an encoder, 15 steps of messages along edges, a decoder,
    all of two hidden layers of 128 with a layer norm."""

    def __init__(self, node: int = 11, edge: int = 7, width: int = 128, steps: int = 15):
        super().__init__()
        self.nodes, self.edges = _mlp(node, width), _mlp(edge, width)
        self.steps = nn.ModuleList(_Messages(width) for _ in range(steps))
        self.out = nn.Sequential(*_mlp(width, width)[:-2], nn.ReLU(), nn.Linear(width, 2))

    def forward(
        self, node: torch.Tensor, edge: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        nodes, edges = self.nodes(node), self.edges(edge)
        for step in self.steps:
            nodes, edges = step(nodes, edges, source, target)
        return self.out(nodes).pow(2).mean()


def mesh_graph_net() -> Built:
    edges = torch.zeros(60, dtype=torch.long)
    return MeshGraphNet(), {
        "node": torch.zeros(20, 11), "edge": torch.zeros(60, 7), "source": edges, "target": edges,
    }  # fmt: skip


def swin_base() -> Built:
    """timm's swin_base_patch4_window7_224 for images of any size."""
    import timm

    model = timm.create_model("swin_base_patch4_window7_224", strict_img_size=False)
    return model, {"x": torch.zeros(2, 3, 224, 224)}
