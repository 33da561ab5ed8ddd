"""The models of the BalanceNet paper, fitted to grey images of 32 x 32 pixels: ordinary PyTorch modules.

AlexNet, VGG16 and ResNet50 are torchvision's, whose classes expect colour images of 224 x 224 pixels. What differs:

| model | first convolution | pooling before the classifier | hidden units of the classifier |
|---|---|---|---|
| AlexNet | 1 channel, 5 x 5, stride 2 (was 3 channels, 11 x 11, stride 4) | 1 x 1 (was 6 x 6) | `hidden` (was 4,096) |
| VGG16 | 1 channel (was 3) | 1 x 1 (was 7 x 7) | `hidden` (was 4,096) |
| ResNet50 | 1 channel (was 3) | as it was | none, as it was |

The pooled size is what is left of 32 x 32 pixels after the last convolution, so that nothing is repeated or lost. The
paper does not describe its baseline CNN: here it has two convolutions and two linear layers.

Each `forward` names its input `image`, after the column of the data.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import Bottleneck

CHANNELS, SIDE = 1, 32  # of an image
CLASSES = 10


class BaselineCnn(nn.Module):
    """Two convolutions and two linear layers, without dropout and batch normalisation."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(CHANNELS, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(2 * width * (SIDE // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        )

    def forward(self, image: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 32, 32)."""
        logits: Tensor = self.classifier(self.features(image))
        return logits


class AlexNet(models.AlexNet):
    """torchvision's AlexNet for small images."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__(num_classes=CLASSES, dropout=dropout)
        self.features[0] = nn.Conv2d(CHANNELS, 64, kernel_size=5, stride=2, padding=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = _classifier(256, hidden, dropout)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 32, 32)."""
        logits: Tensor = super().forward(image)
        return logits


class Vgg16(models.VGG):
    """torchvision's VGG16 (configuration D, without batch normalisation) for small images."""

    def __init__(self, hidden: int, dropout: float) -> None:
        features = models.vgg16().features  # without weights
        features[0] = nn.Conv2d(CHANNELS, 64, kernel_size=3, padding=1)
        super().__init__(features, num_classes=CLASSES, init_weights=False, dropout=dropout)
        nn.init.kaiming_normal_(features[0].weight, mode="fan_out", nonlinearity="relu")  # as VGG's own
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = _classifier(512, hidden, dropout)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 32, 32)."""
        logits: Tensor = super().forward(image)
        return logits


class ResNet50(models.ResNet):
    """torchvision's ResNet50 for grey images."""

    def __init__(self) -> None:
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=CLASSES)
        self.conv1 = nn.Conv2d(CHANNELS, 64, kernel_size=7, stride=2, padding=3, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 32, 32)."""
        logits: Tensor = super().forward(image)
        return logits


def _classifier(features: int, hidden: int, dropout: float) -> nn.Sequential:
    """The classifier of AlexNet and VGG16, with fewer units."""
    steps: list[nn.Module] = [nn.Linear(features, hidden), nn.ReLU(inplace=True)]
    steps += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True)]
    if dropout:
        steps.insert(2, nn.Dropout(dropout))
        steps.append(nn.Dropout(dropout))
    return nn.Sequential(*steps, nn.Linear(hidden, CLASSES))


def cnn(width: int = 16, hidden: int = 64) -> nn.Module:
    """The baseline CNN; `width` filters in the first convolution, `hidden` units."""
    return BaselineCnn(width, hidden)


def alexnet(hidden: int = 512, dropout: float = 0.5) -> nn.Module:
    """AlexNet."""
    return AlexNet(hidden, dropout)


def vgg16(hidden: int = 512, dropout: float = 0.5) -> nn.Module:
    """VGG16."""
    return Vgg16(hidden, dropout)


def resnet50() -> nn.Module:
    """ResNet50."""
    return ResNet50()
