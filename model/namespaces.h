// Public header.
#pragma once

// The namespace of each top-level folder, and those of the folders that it builds on, whose names it sees unqualified.
// The order is that of the includes (docs/architecture.md); tests/house checks both.

namespace sluice::model {}

namespace sluice::sim {
using namespace model;
}

namespace sluice::kernels {
using namespace model;
}

namespace sluice::exec {
using namespace model;
using namespace kernels;
}  // namespace sluice::exec

// The namespace of import/, whose name would be a keyword.
namespace sluice::imports {
using namespace model;
}

namespace sluice::traces {
using namespace model;
}

namespace sluice::tools {
using namespace model;
using namespace sim;
using namespace kernels;
using namespace exec;
using namespace imports;
using namespace traces;
}  // namespace sluice::tools

namespace sluice::test {
using namespace model;
using namespace sim;
using namespace kernels;
using namespace exec;
using namespace imports;
using namespace traces;
using namespace tools;
}  // namespace sluice::test

namespace sluice::bench {
using namespace model;
using namespace sim;
using namespace kernels;
using namespace exec;
using namespace imports;
using namespace traces;
using namespace tools;
}  // namespace sluice::bench
