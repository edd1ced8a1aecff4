#include "model/slicing/chunk_times.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/errors.h"
#include "model/input/csv.h"

namespace sluice::model {
namespace {

constexpr int kTerms = 4;
using Terms = Eigen::Vector4d;

// Of c, g, b and a.
Terms terms_of(std::int64_t tokens, std::int64_t context) {
  const auto n = static_cast<double>(tokens);
  const auto u = static_cast<double>(context);
  return {1, u, n, 2 * u * n + n * n};
}

bool of_one_size(const std::vector<MeasuredChunk>& chunks) {
  return std::all_of(chunks.begin(), chunks.end(),
                     [&](const MeasuredChunk& chunk) { return chunk.tokens == chunks.front().tokens; });
}

// The least squares of A x = 1 with the terms of `used` alone; the others are 0.
Terms solved(const Eigen::MatrixXd& a, unsigned used) {
  std::vector<int> columns;
  for (int i = 0; i < kTerms; ++i) {
    if ((used >> static_cast<unsigned>(i) & 1U) != 0) columns.push_back(i);
  }
  Eigen::MatrixXd part = a(Eigen::all, columns);
  const Eigen::VectorXd scale = part.colwise().norm().transpose();  // terms differ by many orders of magnitude
  for (Eigen::Index i = 0; i < part.cols(); ++i) part.col(i) /= scale(i) > 0 ? scale(i) : 1;
  const Eigen::VectorXd x = part.completeOrthogonalDecomposition().solve(Eigen::VectorXd::Ones(a.rows()));
  Terms out = Terms::Zero();
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto row = static_cast<Eigen::Index>(i);
    out(columns[i]) = scale(row) > 0 ? x(row) / scale(row) : 0;
  }
  return out;
}

}  // namespace

double ChunkTimes::seconds(std::int64_t tokens, std::int64_t context) const {
  return terms_of(tokens, context).dot(Terms(fixed_s, per_context_s, per_token_s, attention_s));
}

ChunkTimes fit_chunk_times(const std::vector<MeasuredChunk>& chunks, const std::string& source) {
  if (chunks.empty()) throw InputError(source + ": expected measured chunks, got none");
  Eigen::MatrixXd a(std::ssize(chunks), kTerms);  // relative to the times
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    a.row(static_cast<Eigen::Index>(i)) = terms_of(chunks[i].tokens, chunks[i].context) / chunks[i].seconds;
  }
  constexpr unsigned kTokensAndAttention = 0b1100;
  const bool one_size = of_one_size(chunks);
  const unsigned allowed = one_size ? kTokensAndAttention : 0b1111U;
  Terms best = Terms::Zero();
  double least = std::numeric_limits<double>::max();
  for (unsigned used = 1; used <= 0b1111U; ++used) {
    if ((used & ~allowed) != 0) continue;
    const Terms x = solved(a, used);
    const double rest = (a * x - Eigen::VectorXd::Ones(a.rows())).squaredNorm();
    if (x.minCoeff() < 0 || rest >= least) continue;
    least = rest;
    best = x;
  }
  ChunkTimes out{.fixed_s = best(0), .per_context_s = best(1), .per_token_s = best(2), .attention_s = best(3)};
  out.one_size = one_size;
  for (const MeasuredChunk& chunk : chunks) {
    const double error = std::abs(out.seconds(chunk.tokens, chunk.context) / chunk.seconds - 1);
    out.mean_error += error / static_cast<double>(chunks.size());
    out.max_error = std::max(out.max_error, error);
    out.longest = std::max(out.longest, chunk.context + chunk.tokens);
  }
  return out;
}

std::vector<MeasuredChunk> parse_chunks(std::string_view text, const std::string& source, int cells) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 31;
  const CsvTable table(text, source);
  std::vector<MeasuredChunk> out;
  for (int row = 0; row < table.num_rows(); ++row) {
    MeasuredChunk chunk{.tokens = table.integer(row, "tokens", 1, kLongest),
                        .context = table.integer(row, "context", 0, kLongest),
                        .seconds = table.number(row, "seconds", 1e-9, 1e6)};
    if (table.has("ranks")) chunk.seconds *= static_cast<double>(table.integer(row, "ranks", 1, 1 << 20)) / cells;
    out.push_back(chunk);
  }
  return out;
}

}  // namespace sluice::model
