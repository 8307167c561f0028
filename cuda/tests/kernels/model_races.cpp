// The trainer's kernels whose threads meet, once each; the argument seeds the order of threads.
#include "model_arguments.cuh"
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

static bool run(const char* kernel, const void* arguments, u32 threads) {
    unisono_launch launch = {kernel, arguments, 2, threads, 0};
    if (unisono_run(&launch) == 0) {
        return true;
    }
    fprintf(stderr, "%s\n", unisono_error());
    return false;
}

static std::vector<float> numbers(size_t count) {
    std::vector<float> numbers(count);
    for (size_t at = 0; at < count; at++) {
        numbers[at] = float(at * 7 % 31) / 16 - 1;
    }
    return numbers;
}

static bool rows() {
    std::vector<float> input = numbers(5 * 70), values = numbers(5 * 70), vector = numbers(70), moments(10);
    std::vector<float> sums(70), losses(5);
    std::vector<u32> targets(5, 7);
    std::vector<double> partial(2);
    double total = 0;
    Normalize norm = {input.data(), values.data(), vector.data(), vector.data(), moments.data(),
                      sums.data(),  5,             70,            1e-5f,         0};
    CrossEntropy loss = {values.data(), targets.data(), losses.data(), 5, 70, 1, 0, 0, 0};
    std::vector<float> max(5), sums_and_target_logits(10);
    ShardedCrossEntropy classes = {values.data(), targets.data(), max.data(), sums_and_target_logits.data(), 5, 70, 69, 1, 0, 0, 0};
    SquareSums squares = {input.data(), input.size(), partial.data(), &total, 2};
    return run("layer_norm", &norm, 32) && run("layer_norm_backward_gain", &norm, 64) &&
           run("layer_norm_backward", &norm, 32) && run("rms_norm", &norm, 32) && run("rms_norm_backward", &norm, 32) &&
           run("cross_entropy", &loss, 32) && run("class_max", &classes, 32) &&
           run("class_exp", &classes, 32) && run("class_backward", &classes, 32) && run("squares", &squares, 32);
}

static bool attention() {
    std::vector<float> input = numbers(2 * 37 * 3 * 20), output = numbers(2 * 37 * 20), grads(input.size());
    std::vector<float> log_sums(2 * 37), means(2 * 37);
    Attention attend = {input.data(), output.data(), grads.data(), log_sums.data(), means.data(), 2, 37, 1, 20,
                     0.2f,         0};
    return run("attention", &attend, 128) && run("attention_backward_q", &attend, 128) &&
           run("attention_backward_kv", &attend, 128);
}

static bool matmul() {
    std::vector<float> one = numbers(70 * 40), other = numbers(40 * 70), into(70 * 70);
    Matmul product = {one.data(), other.data(), into.data(), 70, 70, 40, 1, 0, 70, {40, 1}, {1, 40}};
    return run("matmul", &product, 64);
}

int main(int, char** arguments) {
    unisono_set_seed(strtoull(arguments[1], nullptr, 10));
    return rows() && attention() && matmul() ? 0 : 1;
}
