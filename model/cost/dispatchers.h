#pragma once

#include "model/workload/training.h"

namespace sluice::model {

// What one rank of an expert-parallel group sends with DeepEP or HybridEP. A token is sent once to every rank of its
// NVLink domain, and once to every other domain, that has some of its experts.
struct ExpertExchange {
  double tokens = 0;
  double token_bytes = 0;
  double copies = 0;  // of a token, on all ranks of the group
  double ranks = 1;   // of the group within one NVLink domain
  double domains = 1;
  double multiprocessors = 0;      // that send and receive; 0: they set no limit
  double nvlink_bytes_per_s = 0;   // nominal, of one GPU
  double network_bytes_per_s = 0;  // of one GPU, where there are several domains
  double copies_to_other_domains = 0;
  bool combines = false;  // results return to their tokens, and are added: also the gradient of a dispatch
};

// Time of the library's kernel in seconds: a fixed time, and the smooth maximum (fourth root of the sum of fourth
// powers) of what its multiprocessors, NVLink and the network take. `dispatcher` is DeepEP or HybridEP.
//
// DeepEP: fitted to 2,340 timings of dispatch and combine on one node of H100, B200, B300, GB200 and GB300
// (ai-dynamo/aiconfigurator @095f58a5, sglang 0.5.12), with errors by GPU from benchmarks/kernels/dispatch_rates.py;
// between nodes, 1.6 (dispatch) and 2.5 times as long on the multiprocessors (2 and 4 nodes of H100 with 8 of them).
// HybridEP: fitted to the kernels' bandwidths of DeepEP's docs/README_Hybrid-EP.md on 8 to 36 ranks of B200 and GB200
// with tokens of 7,168 elements, and to kernels with tokens of 512 on 8 B200 (its branch hybrid-ep @1b8f467). The fixed
// time is what a call in PyTorch takes beyond its kernel and beyond the copy between the tensors of the ranks and the
// buffer that is sent, which orders tokens by expert in training and is priced as such.
double expert_exchange_s(Training::TokenDispatcher dispatcher, const ExpertExchange& sent);

}  // namespace sluice::model
