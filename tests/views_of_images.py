"""The views of images that tests try, and generators for them."""

from pipeline import keys
from pipeline.data import augmentations as views

VIEWS = [views.plain, views.augmix, views.simple, views.weak, views.strong, views.crop_flip_rotate]


def draw(*parts):
    return keys.torch_generator("test", *parts)
