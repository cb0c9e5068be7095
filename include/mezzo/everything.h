// The core library and all components whose headers are installed.
#pragma once

#include "mezzo/mezzo.h"
#if __has_include("mezzo/data/loader.h")
#include "mezzo/data/batch_loader.h"
#include "mezzo/data/batch_queue.h"
#include "mezzo/data/collate.h"
#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/data/preprocess.h"
#include "mezzo/data/sampler.h"
#include "mezzo/data/subset.h"
#include "mezzo/data/table.h"
#include "mezzo/data/transforms.h"
#endif
#if __has_include("mezzo/text/tokenizer.h")
#include "mezzo/text/pretrained_tokenizer.h"
#include "mezzo/text/tokenizer.h"
#endif
#if __has_include("mezzo/models/bert.h")
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/models/causal_lm.h"
#include "mezzo/models/generate.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/gpt_config.h"
#include "mezzo/models/gpt_files.h"
#include "mezzo/models/llama.h"
#include "mezzo/models/resnet.h"
#endif
#if __has_include("mezzo/distributed/group.h")
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/distributed/sync_batch_norm.h"
#endif
#if __has_include("mezzo/insight/insight.h")
#include "mezzo/insight/exponents.h"
#include "mezzo/insight/insight.h"
#include "mezzo/insight/nvtx.h"
#include "mezzo/insight/profiler.h"
#include "mezzo/insight/summary.h"
#endif
#if __has_include("mezzo/interchange/numpy.h")
#include "mezzo/interchange/dlpack.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/interchange/onnx.h"
#include "mezzo/interchange/pytorch.h"
#endif
#if __has_include("mezzo/train/trainer.h")
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/metrics.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"
#include "mezzo/train/trainer.h"
#endif
