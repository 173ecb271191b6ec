// How the images of a problem of one tap, along one axis, are cut into pieces of pixels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"

namespace convtbw::simd {

struct PixelPiece {
  int64_t image, begin, pixels;
};

// Pieces are multiples of a width; an image's last piece also has what is left, so that none is
// shorter than the width unless the image is.
struct PixelPieces {
  int64_t pixels, width, cuts;  // of an image

  static PixelPieces of_at_most(int64_t most, int64_t pixels, int64_t width) {
    const int64_t widths = pixels / width;
    const int64_t at_most = std::max<int64_t>(1, most / width);
    return {pixels, width, std::max<int64_t>(1, ceil_div(widths, at_most))};
  }

  // Of so many images (or groups of them): enough to keep many threads busy until the end, and so
  // long that what each costs is little. One image of 28x28, 20 to 2048 channels, took twice as
  // long as one piece.
  static PixelPieces shared(int64_t images, int64_t pixels, int64_t width) {
    constexpr int64_t kPieces = 16, kLeast = 64, kMost = 1024;
    return of_at_most(std::clamp(pixels / ceil_div(kPieces, images), kLeast, kMost), pixels, width);
  }

  int64_t begin(int64_t cut) const { return pixels / width * cut / cuts * width; }

  PixelPiece piece(int64_t index) const {
    const int64_t cut = index % cuts, first = begin(cut);
    return {index / cuts, first, (cut + 1 < cuts ? begin(cut + 1) : pixels) - first};
  }

  // Of all pieces.
  int64_t most_pixels() const { return ceil_div(pixels / width, cuts) * width + pixels % width; }
};

}  // namespace convtbw::simd
