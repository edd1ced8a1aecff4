#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::model {

// The lengths, in tokens, of the documents that one microbatch packs into its sequence.
using Documents = std::vector<std::int64_t>;

std::int64_t tokens_of(const Documents& documents);

// Reads lengths: a line (of text), or an array of numbers (of JSON, by a name that ends in .json), for each microbatch
// as the data loader has it; in JSON a plain number is a microbatch of one document. Instead of a file, `name` may be a
// synthetic distribution, "lognormal:MEDIAN,SIGMA,MOST,COUNT": COUNT documents of 1 to MOST tokens, always the same
// ones. Throws InputError that names the line or element, "PLACE: ..." for a wrong distribution.
std::vector<Documents> read_lengths(const std::string& name, const std::string& place);

}  // namespace sluice::model
