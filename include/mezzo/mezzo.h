// Everything: #include <mezzo/mezzo.h>.
#pragma once

#include "mezzo/amp.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/bert.h"
#include "mezzo/bert_config.h"
#include "mezzo/data.h"
#include "mezzo/device.h"
#include "mezzo/grad_scaler.h"
#include "mezzo/io.h"
#include "mezzo/module.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/optim.h"
#include "mezzo/tensor.h"
#include "mezzo/tokenizer.h"
#include "mezzo/transformer.h"
