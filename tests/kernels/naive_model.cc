#include "tests/kernels/naive_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "model/to_size.h"

namespace sluice::test {
namespace {

using Vector = std::vector<double>;

class Naive {
 public:
  Naive(const Transformer& model, const Matrices& weights) : model_(model), weights_(weights) {}

  double loss(const Sequence& sequence) const {
    const std::size_t h = to_size(model_.hidden);
    std::vector<Vector> x;
    for (std::size_t p = 0; p < sequence.tokens.size(); ++p) {
      Vector row(h);
      for (std::size_t c = 0; c < h; ++c) {
        row[c] = matrix("embedding.word.weight")[to_size(sequence.tokens[p]) * h + c];
        if (model_.positions > 0) row[c] += matrix("embedding.position.weight")[p * h + c];
      }
      x.push_back(row);
    }
    for (int layer = 0; layer < model_.layers; ++layer) {
      run_layer("layers." + std::to_string(layer) + ".", model_.layer_kind(layer), x);
    }
    double sum = 0;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const Vector normed = norm("final_norm", x[p]);
      const Vector& head = matrix(model_.tied_embeddings ? "embedding.word.weight" : "head.weight");
      const Vector logits = product(head, normed, to_size(model_.vocab));
      double total = 0;
      for (const double logit : logits) total += std::exp(logit);
      sum += std::log(total) - logits[sequence.targets[p]];
    }
    return sum;
  }

 private:
  const Vector& matrix(const std::string& name) const { return weights_.at(name); }

  static Vector product(const Vector& matrix, const Vector& x, std::size_t outputs) {
    Vector out(outputs, 0.0);
    for (std::size_t o = 0; o < outputs; ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) out[o] += matrix[o * x.size() + i] * x[i];
    }
    return out;
  }

  // W x, plus the bias if the model has it.
  Vector linear(const std::string& name, const Vector& x, std::int64_t outputs, bool bias) const {
    Vector out = product(matrix(name + ".weight"), x, to_size(outputs));
    for (std::size_t o = 0; bias && o < out.size(); ++o) out[o] += matrix(name + ".bias")[o];
    return out;
  }

  Vector norm(const std::string& name, const Vector& x) const {
    const auto count = static_cast<double>(x.size());
    double mean = 0;
    if (!model_.rms_norm) {
      for (const double value : x) mean += value / count;
    }
    double variance = 0;
    for (const double value : x) variance += (value - mean) * (value - mean) / count;
    Vector out(x.size());
    for (std::size_t c = 0; c < x.size(); ++c) {
      out[c] = (x[c] - mean) / std::sqrt(variance + 1e-5) * matrix(name + ".weight")[c];
      if (!model_.rms_norm) out[c] += matrix(name + ".bias")[c];
    }
    return out;
  }

  // Rotary embedding: rotates each pair (i, i + d/2) of every head by position x 10000^(-2i/d).
  void rotate(Vector& x, std::size_t position) const {
    const std::size_t d = to_size(model_.head_dim);
    for (std::size_t head = 0; head < x.size() / d; ++head) {
      for (std::size_t i = 0; i < d / 2; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(model_.head_dim));
        double& a = x[head * d + i];
        double& b = x[head * d + i + d / 2];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  Vector attend(const Vector& query, const std::vector<Vector>& keys, const std::vector<Vector>& values) const {
    const std::size_t d = to_size(model_.head_dim);
    Vector out(query.size(), 0.0);
    for (std::size_t head = 0; head < to_size(model_.heads); ++head) {
      const std::size_t shared = head / to_size(model_.heads / model_.kv_heads);
      Vector weights;
      double total = 0;
      for (const Vector& key : keys) {
        double score = 0;
        for (std::size_t c = 0; c < d; ++c) score += query[head * d + c] * key[shared * d + c];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        total += weights.back();
      }
      for (std::size_t k = 0; k < keys.size(); ++k) {
        for (std::size_t c = 0; c < d; ++c) out[head * d + c] += weights[k] / total * values[k][shared * d + c];
      }
    }
    return out;
  }

  Vector mlp(const std::string& name, const Vector& x, std::int64_t size) const {
    Vector inner = linear(name + "up", x, size, model_.mlp_bias);
    if (model_.gated) {
      const Vector gate = linear(name + "gate", x, size, model_.mlp_bias);
      for (std::size_t c = 0; c < inner.size(); ++c) inner[c] *= gate[c] / (1 + std::exp(-gate[c]));
    } else {
      for (double& value : inner) {
        const double cubic = value + 0.044715 * value * value * value;
        value = 0.5 * value * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * cubic));
      }
    }
    return linear(name + "down", inner, model_.hidden, model_.mlp_bias);
  }

  // The sum of the experts with the highest logits, weighted with the softmax of these logits (Jiang et al. 2024, 2.1),
  // or for one expert with its part of the softmax of all logits (Fedus et al. 2022, eq. 2); and of the shared experts.
  Vector experts(const std::string& name, const Vector& x) const {
    const Experts& experts = model_.experts;
    const Vector logits = linear(name + "router", x, experts.count, false);
    std::vector<std::pair<double, int>> order;
    double total = 0;
    for (int e = 0; e < experts.count; ++e) {
      order.emplace_back(-logits[e], e);
      total += experts.per_token == 1 ? std::exp(logits[e]) : 0;
    }
    std::sort(order.begin(), order.end());
    order.resize(to_size(experts.per_token));
    for (const auto& [negative, e] : order) total += experts.per_token == 1 ? 0 : std::exp(-negative);
    Vector out(x.size(), 0.0);
    for (const auto& [negative, e] : order) {
      const Vector of = mlp(name + "experts." + std::to_string(e) + ".", x, experts.ffn_hidden);
      for (std::size_t c = 0; c < x.size(); ++c) out[c] += std::exp(-negative) / total * of[c];
    }
    if (experts.shared_ffn_hidden == 0) return out;
    const Vector shared = mlp(name + "shared.", x, experts.shared_ffn_hidden);
    const double gate = experts.shared_gate ? 1 / (1 + std::exp(-linear(name + "shared_gate", x, 1, false)[0])) : 1;
    for (std::size_t c = 0; c < x.size(); ++c) out[c] += gate * shared[c];
    return out;
  }

  void run_layer(const std::string& name, LayerKind kind, std::vector<Vector>& x) const {
    std::vector<Vector> keys;
    std::vector<Vector> values;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const Vector normed = norm(name + "norm1", x[p]);
      const std::int64_t key_width = std::int64_t{model_.kv_heads} * model_.head_dim;
      Vector query = linear(name + "attention.query", normed, model_.query_width(), model_.qkv_bias);
      keys.push_back(linear(name + "attention.key", normed, key_width, model_.qkv_bias));
      values.push_back(linear(name + "attention.value", normed, key_width, model_.qkv_bias));
      if (model_.positions == 0) {
        rotate(query, p);
        rotate(keys.back(), p);
      }
      const Vector attended = attend(query, keys, values);
      const Vector out = linear(name + "attention.output", attended, model_.hidden, model_.projection_bias);
      for (std::size_t c = 0; c < out.size(); ++c) x[p][c] += out[c];
      const Vector second = norm(name + "norm2", x[p]);
      const Vector more =
          kind == LayerKind::dense ? mlp(name + "mlp.", second, model_.ffn_hidden) : experts(name + "mlp.", second);
      for (std::size_t c = 0; c < more.size(); ++c) x[p][c] += more[c];
    }
  }

  const Transformer& model_;
  const Matrices& weights_;
};

}  // namespace

double naive_loss(const Transformer& model, const Matrices& weights, const std::vector<Sequence>& sequences) {
  double sum = 0;
  for (const Sequence& sequence : sequences) sum += Naive(model, weights).loss(sequence);
  return sum;
}

}  // namespace sluice::test
