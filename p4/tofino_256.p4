// The aggregator on Tofino 1, for packets of up to 256 lanes: `include/parts.p4`.

#define PARTS 4
#include "tofino.p4"
