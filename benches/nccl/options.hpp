// Options of the benchmark's command line.
#pragma once

#include "elements.hpp"
#include <algorithm>
#include <sstream>
#include <stdio.h>
#include <stdlib.h>

namespace bench {

struct Options {
    int ranks = 2;
    std::vector<std::string> collectives{"all_reduce"};
    std::vector<size_t> bytes{8, 65536, 1 << 20, 16 << 20};
    const Type* type = &TYPES[0];
    std::vector<bool> in_place{false, true};
    std::vector<std::string> modes{"enqueued", "graph"};
    bool registered = false, version_only = false;
    double seconds = 25;
    std::string library = "libnccl.so.2";
};

inline std::vector<std::string> list(const std::string& text) {
    std::vector<std::string> words;
    std::istringstream stream(text);
    for (std::string word; std::getline(stream, word, ',');) {
        words.push_back(word);
    }
    return words;
}

[[noreturn]] inline void refuse(const std::string& why) {
    fprintf(stderr, "bench: %s; the head of bench.cpp has the options\n", why.c_str());
    exit(2);
}

inline double number(const std::string& text) {
    char* end = nullptr;
    double found = strtod(text.c_str(), &end);
    if (text.empty() || *end || found <= 0) {
        refuse("no positive number: " + text);
    }
    return found;
}

inline const std::vector<std::string> COLLECTIVES{"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                           "reduce",     "all_to_all", "sendrecv"};

inline void check_words(const std::vector<std::string>& words, const std::vector<std::string>& known) {
    for (const std::string& word : words) {
        if (std::find(known.begin(), known.end(), word) == known.end()) {
            refuse("unknown word: " + word);
        }
    }
}

inline const Type* type_of(const std::string& name) {
    for (const Type& type : TYPES) {
        if (name == type.name) {
            return &type;
        }
    }
    refuse("unknown type: " + name);
}

inline void read_option(Options& options, const std::string& name, const std::string& value) {
    if (name == "--ranks") {
        options.ranks = int(number(value));
        if (options.ranks < 2 || options.ranks > 8) {
            refuse("2 to 8 ranks");
        }
    } else if (name == "--collective") {
        check_words(options.collectives = list(value), COLLECTIVES);
    } else if (name == "--bytes") {
        options.bytes.clear();
        for (const std::string& each : list(value)) {
            options.bytes.push_back(size_t(number(each)));
        }
    } else if (name == "--dtype") {
        options.type = type_of(value);
    } else if (name == "--in-place") {
        check_words({value}, {"yes", "no", "both"});
        options.in_place = value == "both" ? std::vector<bool>{false, true} : std::vector<bool>{value == "yes"};
    } else if (name == "--modes") {
        check_words(options.modes = list(value), {"enqueued", "graph"});
    } else if (name == "--seconds") {
        options.seconds = number(value);
    } else if (name == "--library") {
        options.library = value;
    } else {
        refuse("unknown option: " + name);
    }
}

inline Options read_options(int count, char** arguments) {
    Options options;
    for (int index = 1; index < count; index++) {
        std::string name = arguments[index];
        if (name == "--registered" || name == "--version") {
            (name == "--version" ? options.version_only : options.registered) = true;
        } else if (index + 1 < count) {
            read_option(options, name, arguments[++index]);
        } else {
            refuse("no value of " + name);
        }
    }
    return options;
}

} // namespace bench
