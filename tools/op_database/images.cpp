// Convolutions, pooling, resizing and norms of signals, images and volumes.
#include "tools/op_database/call.h"

namespace database {

namespace {

// `dims` is the number of dimensions of a sample without a batch.
template <class F> Tensor images_of(const Call& c, int dims, F&& function) {
    const bool one = c.x().dim() == dims;
    const Tensor y = channels_first(function(channels_last(one ? c.x().unsqueeze(0) : c.x())));
    return one ? y.squeeze(0) : y;
}
Tensor kernel(const Call& c) { return channels_last(c.x(1)); }

// "same" and "valid", or numbers.
template <class F> auto padding_of(const Call& c, F&& numbers) -> decltype(numbers()) {
    if (!c.has("padding", 4) || !c.json("padding", 4).is_string()) return numbers();
    return c.text("padding", 4, "") == "same" ? decltype(numbers())(mz::same_padding)
                                              : decltype(numbers())(0);
}

mz::Conv2dOptions conv2d_options(const Call& c) {
    return {.stride = c.pair("stride", 3, 1),
            .padding = padding_of(c, [&] { return c.pair("padding", 4, 0); }),
            .dilation = c.pair("dilation", 5, 1),
            .groups = c.integer("groups", 6, 1)};
}
std::int64_t single(const Call& c, const std::string& name, std::size_t position, std::int64_t otherwise) {
    const auto list = c.integers(name, position);
    return list.empty() ? otherwise : list[0];
}
mz::Conv1dOptions conv1d_options(const Call& c) {
    return {.stride = single(c, "stride", 3, 1),
            .padding = padding_of(c, [&] { return single(c, "padding", 4, 0); }),
            .dilation = single(c, "dilation", 5, 1),
            .groups = c.integer("groups", 6, 1)};
}
mz::ConvTranspose2dOptions transpose2d_options(const Call& c) {
    return {.stride = c.pair("stride", 3, 1),
            .padding = c.pair("padding", 4, 0),
            .output_padding = c.pair("output_padding", 5, 0),
            .dilation = c.pair("dilation", 7, 1),
            .groups = c.integer("groups", 6, 1)};
}

mz::Size3d triple(const Call& c, const std::string& name, std::size_t position, mz::Size3d otherwise) {
    const auto list = c.integers(name, position);
    if (list.empty()) return otherwise;
    return list.size() == 1 ? mz::Size3d(list[0]) : mz::Size3d{list.at(0), list.at(1), list.at(2)};
}
// Results of a max pool with its indices, where they are asked for; PyTorch's order of channels.
template <class F> Tensors pooled(const Call& c, int dims, bool indices, F&& function) {
    const bool one = c.x().dim() == dims;
    const mz::Pooled y = function(channels_last(one ? c.x().unsqueeze(0) : c.x()));
    Tensors result{channels_first(y.values)};
    if (indices) result.push_back(channels_first(y.indices));
    if (one)
        for (Tensor& x : result) x = x.squeeze(0);
    return result;
}
template <class Options, class Size> Options max_options(const Call& c, Size size) {
    return {.kernel_size = size("kernel_size", 1, 1),
            .stride = size("stride", 2, 0),
            .padding = size("padding", 3, 0),
            .dilation = size("dilation", 4, 1),
            .ceil_mode = c.flag("ceil_mode", 5)};
}
template <class Options, class Size> Options avg_options(const Call& c, Size size) {
    return {.kernel_size = size("kernel_size", 1, 1),
            .stride = size("stride", 2, 0),
            .padding = size("padding", 3, 0),
            .ceil_mode = c.flag("ceil_mode", 4),
            .count_include_pad = c.flag("count_include_pad", 5, true),
            .divisor_override = c.integer("divisor_override", 6, 0)};
}
auto singles(const Call& c) {
    return [&c](const char* name, std::size_t position, std::int64_t otherwise) {
        return single(c, name, position, otherwise);
    };
}
auto pairs(const Call& c) {
    return [&c](const char* name, std::size_t position, std::int64_t otherwise) {
        return c.pair(name, position, otherwise);
    };
}
auto triples(const Call& c) {
    return [&c](const char* name, std::size_t position, std::int64_t otherwise) {
        return triple(c, name, position, otherwise);
    };
}
template <class F> Tensor unpooled(const Call& c, int dims, F&& function) {
    const Tensor indices = c.x(1);
    return images_of(c, dims, [&](const Tensor& x) {
        return function(x, channels_last(indices.dim() == dims ? indices.unsqueeze(0) : indices));
    });
}
mz::Shape tail(const Call& c, const std::string& name, std::size_t position, int dims) {
    mz::Shape all = c.axes(name, position);
    while (all.size() > dims) all.erase(0);
    return all;
}

Tensor interpolated(const Call& c, const std::string& mode, bool align_corners) {
    const std::map<std::string, mz::InterpolateMode> modes{
        {"nearest", mz::InterpolateMode::nearest},
        {"bilinear", mz::InterpolateMode::bilinear},
        {"bicubic", mz::InterpolateMode::bicubic},
        {"linear", mz::InterpolateMode::linear},
        {"trilinear", mz::InterpolateMode::trilinear},
        {"area", mz::InterpolateMode::area},
        {"nearest-exact", mz::InterpolateMode::nearest_exact}};
    mz::InterpolateOptions options{.mode = modes.at(mode),
                                   .align_corners = align_corners,
                                   .recompute_scale_factor = c.flag("recompute_scale_factor", 5)};
    if (c.flag("antialias", 6)) throw NotHere("antialias");
    if (c.has("scale_factor", 2)) {
        const Json& factor = c.json("scale_factor", 2);
        std::vector<double> f;
        if (factor.is_array())
            for (const Json& one : factor) f.push_back(one.get<double>());
        else
            f.push_back(c.number("scale_factor", 2, 1));
        options.scale_factor = f.size() == 1   ? mz::ScaleFactor(f[0])
                               : f.size() == 2 ? mz::ScaleFactor(f[0], f[1])
                                               : mz::ScaleFactor(f[0], f[1], f[2]);
        return channels_first(mz::interpolate(channels_last(c.x()), options));
    }
    return channels_first(mz::interpolate(channels_last(c.x()), c.axes("size", 1), options));
}

Tensor sampled(const Call& c) {
    const std::map<std::string, mz::InterpolateMode> modes{{"nearest", mz::InterpolateMode::nearest},
                                                           {"bilinear", mz::InterpolateMode::bilinear},
                                                           {"bicubic", mz::InterpolateMode::bicubic}};
    const std::map<std::string, mz::PadMode> edges{{"zeros", mz::PadMode::constant},
                                                   {"border", mz::PadMode::replicate},
                                                   {"reflection", mz::PadMode::reflect}};
    return channels_first(mz::grid_sample(channels_last(c.x()), c.x(1),
                                          {.mode = modes.at(c.text("mode", 2, "bilinear")),
                                           .padding_mode = edges.at(c.text("padding_mode", 3, "zeros")),
                                           .align_corners = c.flag("align_corners", 4)}));
}

// Columns of patches: PyTorch's have the channels before the pixels of a patch, and the patches last.
Tensor unfolded(const Call& c) {
    const mz::UnfoldOptions options{.kernel_size = c.pair("kernel_size", 1, 1),
                                    .dilation = c.pair("dilation", 2, 1),
                                    .padding = c.pair("padding", 3, 0),
                                    .stride = c.pair("stride", 4, 1)};
    const bool one = c.x().dim() == 3;
    const Tensor x = channels_last(one ? c.x().unsqueeze(0) : c.x());
    const std::int64_t channels = x.size(3), pixels = options.kernel_size.height * options.kernel_size.width;
    const Tensor y = mz::unfold(x, options);
    const Tensor z = y.reshape({y.size(0), y.size(1), pixels, channels}).permute({0, 3, 2, 1}).flatten(1, 2);
    return one ? z.squeeze(0) : z;
}

Table volumes() {
    return {
        OP("conv3d", {images_of(c, 4,
                                [&](const Tensor& x) {
                                    return mz::conv3d(
                                        x, kernel(c), c.tensor("bias", 2),
                                        {.stride = triple(c, "stride", 3, 1),
                                         .padding = padding_of(c, [&] { return triple(c, "padding", 4, 0); }),
                                         .dilation = triple(c, "dilation", 5, 1),
                                         .groups = c.integer("groups", 6, 1)});
                                })}),
        OP("conv_transpose1d", {images_of(c, 2,
                                          [&](const Tensor& x) {
                                              return mz::conv_transpose1d(
                                                  x, kernel(c), c.tensor("bias", 2),
                                                  {.stride = single(c, "stride", 3, 1),
                                                   .padding = single(c, "padding", 4, 0),
                                                   .output_padding = single(c, "output_padding", 5, 0),
                                                   .dilation = single(c, "dilation", 7, 1),
                                                   .groups = c.integer("groups", 6, 1)});
                                          })}),
        OP("conv_transpose3d", {images_of(c, 4,
                                          [&](const Tensor& x) {
                                              return mz::conv_transpose3d(
                                                  x, kernel(c), c.tensor("bias", 2),
                                                  {.stride = triple(c, "stride", 3, 1),
                                                   .padding = triple(c, "padding", 4, 0),
                                                   .output_padding = triple(c, "output_padding", 5, 0),
                                                   .dilation = triple(c, "dilation", 7, 1),
                                                   .groups = c.integer("groups", 6, 1)});
                                          })}),
        OP("avg_pool3d", {images_of(c, 4,
                                    [&](const Tensor& x) {
                                        return mz::avg_pool3d(
                                            x, avg_options<mz::AvgPool3dOptions>(c, triples(c)));
                                    })}),
        OP("max_pool3d", pooled(c, 4, c.flag("return_indices", 6),
                                [&](const Tensor& x) {
                                    return mz::max_pool3d_with_indices(
                                        x, max_options<mz::MaxPool3dOptions>(c, triples(c)));
                                })),
        OP("adaptive_avg_pool3d", {images_of(c, 4,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_avg_pool3d(
                                                     x, triple(c, "output_size", 1, 1));
                                             })}),
        OP("adaptive_max_pool3d", pooled(c, 4, c.flag("return_indices", 2),
                                         [&](const Tensor& x) {
                                             return mz::adaptive_max_pool3d_with_indices(
                                                 x, triple(c, "output_size", 1, 1));
                                         })),
    };
}

Table rearranged() {
    return {
        OP("max_unpool1d", {unpooled(c, 2,
                                     [&](const Tensor& x, const Tensor& i) {
                                         const mz::Shape size = tail(c, "output_size", 5, 1);
                                         return mz::max_unpool1d(
                                             x, i,
                                             {.kernel_size = single(c, "kernel_size", 2, 1),
                                              .stride = single(c, "stride", 3, 0),
                                              .padding = single(c, "padding", 4, 0),
                                              .output_size = size.empty() ? 0 : size[0]});
                                     })}),
        OP("max_unpool2d",
           {unpooled(c, 3,
                     [&](const Tensor& x, const Tensor& i) {
                         const mz::Shape size = tail(c, "output_size", 5, 2);
                         return mz::max_unpool2d(
                             x, i,
                             {.kernel_size = c.pair("kernel_size", 2, 1),
                              .stride = c.pair("stride", 3, 0),
                              .padding = c.pair("padding", 4, 0),
                              .output_size = size.empty() ? mz::Size2d(0) : mz::Size2d(size[0], size[1])});
                     })}),
        OP("max_unpool3d", {unpooled(c, 4,
                                     [&](const Tensor& x, const Tensor& i) {
                                         const mz::Shape size = tail(c, "output_size", 5, 3);
                                         return mz::max_unpool3d(
                                             x, i,
                                             {.kernel_size = triple(c, "kernel_size", 2, 1),
                                              .stride = triple(c, "stride", 3, 0),
                                              .padding = triple(c, "padding", 4, 0),
                                              .output_size = size.empty()
                                                                 ? mz::Size3d(0)
                                                                 : mz::Size3d(size[0], size[1], size[2])});
                                     })}),
        OP("unfold", {unfolded(c)}),
        OP("pixel_shuffle",
           {channels_first(mz::pixel_shuffle(channels_last(c.x()), c.integer("upscale_factor", 1, 1)))}),
        OP("pixel_unshuffle",
           {channels_first(mz::pixel_unshuffle(channels_last(c.x()), c.integer("downscale_factor", 1, 1)))}),
        OP("channel_shuffle",
           {channels_first(mz::channel_shuffle(channels_last(c.x()), c.integer("groups", 1, 1)))}),
    };
}

Table resized() {
    return {
        OP("interpolate", {interpolated(c, c.text("mode", 3, "nearest"), c.flag("align_corners", 4))}),
        OP("upsample_bilinear", {interpolated(c, "bilinear", true)}),
        OP("upsample_nearest", {interpolated(c, "nearest", false)}),
        OP("grid_sample", {sampled(c)}),
        OP("instance_norm", {channels_first(mz::instance_norm(
                                channels_last(c.x()), c.tensor("running_mean", 1), c.tensor("running_var", 2),
                                c.tensor("weight", 3), c.tensor("bias", 4),
                                {.use_input_stats = c.flag("use_input_stats", 5, true),
                                 .momentum = c.number("momentum", 6, 0.1),
                                 .eps = c.number("eps", 7, 1e-5)}))}),
        OP("local_response_norm",
           {channels_first(mz::local_response_norm(channels_last(c.x()), c.integer("size", 1, 1),
                                                   {.alpha = c.number("alpha", 2, 1e-4),
                                                    .beta = c.number("beta", 3, 0.75),
                                                    .k = c.number("k", 4, 1)}))}),
    };
}

Table flat_images() {
    return {
        OP("conv2d", {images_of(c, 3,
                                [&](const Tensor& x) {
                                    return mz::conv2d(x, kernel(c), c.tensor("bias", 2), conv2d_options(c));
                                })}),
        OP("conv1d", {images_of(c, 2,
                                [&](const Tensor& x) {
                                    return mz::conv1d(x, kernel(c), c.tensor("bias", 2), conv1d_options(c));
                                })}),
        OP("conv_transpose2d", {images_of(c, 3,
                                          [&](const Tensor& x) {
                                              return mz::conv_transpose2d(x, kernel(c), c.tensor("bias", 2),
                                                                          transpose2d_options(c));
                                          })}),
        OP("max_pool2d", pooled(c, 3, c.flag("return_indices", 6),
                                [&](const Tensor& x) {
                                    return mz::max_pool2d_with_indices(
                                        x, max_options<mz::MaxPool2dOptions>(c, pairs(c)));
                                })),
        OP("max_pool1d", pooled(c, 2, c.flag("return_indices", 6),
                                [&](const Tensor& x) {
                                    return mz::max_pool1d_with_indices(
                                        x, max_options<mz::MaxPool1dOptions>(c, singles(c)));
                                })),
    };
}

Table means() {
    return {
        OP("avg_pool2d", {images_of(c, 3,
                                    [&](const Tensor& x) {
                                        return mz::avg_pool2d(x,
                                                              avg_options<mz::AvgPool2dOptions>(c, pairs(c)));
                                    })}),
        OP("avg_pool1d", {images_of(c, 2,
                                    [&](const Tensor& x) {
                                        return mz::avg_pool1d(
                                            x, {.kernel_size = single(c, "kernel_size", 1, 1),
                                                .stride = single(c, "stride", 2, 0),
                                                .padding = single(c, "padding", 3, 0),
                                                .ceil_mode = c.flag("ceil_mode", 4),
                                                .count_include_pad = c.flag("count_include_pad", 5, true)});
                                    })}),
        OP("adaptive_avg_pool2d", {images_of(c, 3,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_avg_pool2d(x,
                                                                                c.pair("output_size", 1, 1));
                                             })}),
        OP("adaptive_max_pool2d", pooled(c, 3, c.flag("return_indices", 2),
                                         [&](const Tensor& x) {
                                             return mz::adaptive_max_pool2d_with_indices(
                                                 x, c.pair("output_size", 1, 1));
                                         })),
        OP("adaptive_avg_pool1d", {images_of(c, 2,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_avg_pool1d(
                                                     x, single(c, "output_size", 1, 1));
                                             })}),
        OP("adaptive_max_pool1d", pooled(c, 2, c.flag("return_indices", 2),
                                         [&](const Tensor& x) {
                                             return mz::adaptive_max_pool1d_with_indices(
                                                 x, single(c, "output_size", 1, 1));
                                         })),
    };
}

}  // namespace

Table images() {
    Table table = flat_images();
    for (const Table& more : {means(), volumes(), rearranged(), resized()})
        table.insert(more.begin(), more.end());
    return table;
}

}  // namespace database
