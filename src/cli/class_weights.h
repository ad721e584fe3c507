// --class-weights: numbers on the command line, or in a file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "steep/limits.h"
#include "train/option_rows.h"

namespace steep::cli {

/// Adds the flag of `row`, whose text class_weights_from() reads. Refuses a text that is neither a
/// list of numbers nor the name of an existing file.
CLI::Option* add_class_weights_option(CLI::App& app, const OptionRow& row, std::string& text);

/// Parses "1,2,0.5", or reads a file with one number for each class, in order: an .npy file of one
/// axis, or text with spaces, commas or line ends between the numbers. Throws DataError that names
/// file, row and number: no numbers, a text that is not a number, a number that is negative or not
/// finite, a file that is too large. Throws IoError.
std::vector<double> class_weights_from(const std::string& text, const Limits& limits);

}  // namespace steep::cli
