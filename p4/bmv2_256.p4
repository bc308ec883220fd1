// The aggregator on bmv2's simple_switch, for packets of up to 256 lanes: `include/parts.p4`.

#define PARTS 4
#include "bmv2.p4"
