"""Train a variational autoencoder of printed digits in Keras, and write ``weights.npz``.

This made what ``examples/keras_decoder.py`` ports, with TensorFlow 2.21 and Keras 3.15; nothing
else needs TensorFlow. The network is that of Keras' own example (F. Chollet, "Variational
AutoEncoder", 2020) for 32 x 32 pixels, with kernels of 3, 4 and 5.

    pip install tensorflow-cpu matplotlib pillow
    python examples/keras_vae/train.py

In the file: weights by Keras' paths, in Keras' layouts, as float16 (they are rounded to it before
anything is computed from them), and under ``reference/`` what TensorFlow computes from them.
"""

from __future__ import annotations

from pathlib import Path

import keras
import matplotlib
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image, ImageDraw, ImageFont

SIZE, LATENT = 32, 16
FONTS = "DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cmr10", "cmss10", "cmtt10"


def printed_digits(random: np.random.Generator, copies: int) -> np.ndarray:
    """(N, 32, 32, 1): each digit in each of matplotlib's fonts, a little turned and scaled."""
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    fonts = [font for name in FONTS for font in sorted(folder.glob(f"{name}.ttf"))]
    fonts = [font for font in fonts if "Display" not in font.name]
    pictures = []
    for font in fonts:
        for digit in "0123456789":
            for _ in range(copies):
                picture = Image.new("L", (SIZE, SIZE))
                face = ImageFont.truetype(str(font), int(random.integers(24, 33)))
                ImageDraw.Draw(picture).text((16, 16), digit, fill=255, font=face, anchor="mm")
                angle = float(random.uniform(-12, 12))
                pictures.append(np.asarray(picture.rotate(angle, Image.Resampling.BICUBIC)))
    return np.stack(pictures)[..., None].astype(np.float32) / 255


def encoder() -> keras.Model:
    same = {"strides": 2, "padding": "same", "activation": "relu"}
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(16, 3, name="conv2d", **same)(inputs)
    x = layers.Conv2D(32, 4, name="conv2d_1", **same)(x)
    x = layers.Conv2D(64, 5, name="conv2d_2", **same)(x)
    x = layers.Flatten()(x)
    mean = layers.Dense(LATENT, name="z_mean")(x)
    log_variance = layers.Dense(LATENT, name="z_log_var")(x)
    return keras.Model(inputs, [mean, log_variance], name="encoder")


def decoder() -> keras.Model:
    same = {"strides": 2, "padding": "same", "activation": "relu"}
    inputs = keras.Input((LATENT,))
    x = layers.Dense(4 * 4 * 64, activation="relu", name="dense")(inputs)
    x = layers.Reshape((4, 4, 64))(x)
    x = layers.Conv2DTranspose(64, 5, name="conv2d_transpose", **same)(x)
    x = layers.Conv2DTranspose(32, 4, name="conv2d_transpose_1", **same)(x)
    x = layers.Conv2DTranspose(16, 3, name="conv2d_transpose_2", **same)(x)
    # Logits: the example's sigmoid is left to the loss.
    x = layers.Conv2DTranspose(1, 3, padding="same", name="conv2d_transpose_3")(x)
    return keras.Model(inputs, x, name="decoder")


class VAE(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()
        self.mean_loss = keras.metrics.Mean(name="loss")

    def train_step(self, pictures: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            mean, log_variance = self.encoder(pictures)
            z = mean + tf.exp(log_variance / 2) * tf.random.normal(tf.shape(mean))
            wrong = tf.nn.sigmoid_cross_entropy_with_logits(pictures, self.decoder(z))
            divergence = (tf.square(mean) + tf.exp(log_variance) - log_variance - 1) / 2
            count = tf.cast(tf.shape(pictures)[0], tf.float32)
            loss = (tf.reduce_sum(wrong) + tf.reduce_sum(divergence)) / count
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def reference(vae: VAE, pictures: np.ndarray, random: np.random.Generator) -> dict:
    """What TensorFlow computes: both networks, and gradients through the decoder."""
    mean, log_variance = vae.encoder(pictures)
    latent = tf.constant(random.standard_normal((8, LATENT)).astype(np.float32))
    kernel = vae.decoder.get_layer("conv2d_transpose_2").kernel
    with tf.GradientTape() as tape:
        tape.watch(latent)
        logits = vae.decoder(latent)
        loss = tf.reduce_mean(tf.square(logits))
    to_latent, to_kernel = tape.gradient(loss, [latent, kernel.value])
    found = {
        "pictures": pictures,
        "mean": mean,
        "log_variance": log_variance,
        "latent": latent,
        "logits": logits,
        "gradient/latent": to_latent,
        "gradient/conv2d_transpose_2/kernel": to_kernel,
    }
    return {f"reference/{name}": np.asarray(value) for name, value in found.items()}


def main() -> None:
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    pictures = printed_digits(random, copies=60)
    vae = VAE()
    rate = keras.optimizers.schedules.CosineDecay(2e-3, 40 * (len(pictures) // 128))
    vae.compile(keras.optimizers.Adam(rate))
    vae.fit(pictures, epochs=40, batch_size=128, verbose=2)
    vae.set_weights([w.astype(np.float16).astype(np.float32) for w in vae.get_weights()])
    weights = {
        f"{model.name}/{layer.name}/{weight.name}": weight.numpy().astype(np.float16)
        for model in (vae.encoder, vae.decoder)
        for layer in model.layers
        for weight in layer.weights
    }
    chosen = random.choice(len(pictures), 8, replace=False)
    path = Path(__file__).with_name("weights.npz")
    np.savez_compressed(path, **weights, **reference(vae, pictures[chosen], random))
    print(path, path.stat().st_size, {name: value.shape for name, value in weights.items()})


if __name__ == "__main__":
    main()
