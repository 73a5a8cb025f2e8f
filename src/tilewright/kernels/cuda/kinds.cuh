// What a and b of the Ampere family are. Knows sizes; nothing of instructions (products.cuh) or out (Type of base.cuh).
#pragma once

#include "base.cuh"

enum class Input { bf16, fp16, int8, tf32 };

DEVICE constexpr int size_of(Input input) { return input == Input::int8 ? 1 : input == Input::tf32 ? 4 : 2; }
