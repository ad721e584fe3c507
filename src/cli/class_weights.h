// --class-weights: numbers on the command line, or in a file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "steep/limits.h"
#include "train/option_rows.h"

namespace steep::cli {

/// The flag of `row`, which class_weights_from() reads. Refuses a word that is neither a list of
/// numbers nor the name of a file that is there.
CLI::Option* add_class_weights_option(CLI::App& app, const OptionRow& row, std::string& text);

/// "1,2,0.5", or a file with one number for each class, in order: an .npy file of one axis, or text
/// with blanks, commas or line ends between the numbers. Throws DataError that names file, row and
/// number: no numbers, what is no number, one that is negative or not finite, and past a limit;
/// IoError.
std::vector<double> class_weights_from(const std::string& text, const Limits& limits);

}  // namespace steep::cli
