// Written by the table in `src/device/arguments.rs`.
#pragma once

static_assert(OFFSET_OF(ReduceCopy, sources) == 0);
static_assert(OFFSET_OF(ReduceCopy, targets) == 128);
static_assert(OFFSET_OF(ReduceCopy, factors) == 256);
static_assert(OFFSET_OF(ReduceCopy, count) == 384);
static_assert(OFFSET_OF(ReduceCopy, source_count) == 392);
static_assert(OFFSET_OF(ReduceCopy, target_count) == 396);
static_assert(OFFSET_OF(ReduceCopy, divisor) == 400);
static_assert(OFFSET_OF(ReduceCopy, unused) == 404);
static_assert(sizeof(ReduceCopy) == 408);
