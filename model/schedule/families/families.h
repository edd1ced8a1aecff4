#pragma once

#include "model/schedule/family.h"

// One function for each family, each in the file of its name, or of what they have in common. The registry calls them;
// nothing else does.
namespace sluice::model::families {

Family gpipe();
Family one_f_one_b();
Family eager_1f1b();
Family interleaved_1f1b();
Family combined_1f1b();
Family looped_bfs();
Family terapipe();
Family seq1f1b();
Family eager_seq1f1b();
Family seq1f1b_interleaved();
Family zb_h1();
Family zb_h2();
Family seq1f1b_zb1p();
Family seq1f1b_zb2p();
Family zb_v();
Family v_half();
Family v_min();
Family interleaved_zb();
Family dualpipe();
Family dualpipe_v();
Family chimera();
Family hanayo();
Family pipedream();
Family pipedream_2bw();
Family vocabulary_1();
Family vocabulary_2();
Family interlaced();
Family v_half_vocabulary_1();
Family v_half_vocabulary_2();

}  // namespace sluice::model::families
