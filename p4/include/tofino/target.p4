// ---- Ingress ----

// The ports of each pipeline that have no cable, 68 to 71.
#define RECIRCULATION_PORTS 9w68 &&& 9w0x7C
#define RECIRCULATION_PORT 9w68
#define LEARN_DIGEST 1
// Neither a group's node, nor 0, which the chip prunes for by default.
#define NO_NODE 16w0xFFFF
// Number of exclusion ids of a chip: 0 to 287.
#define EXCLUSION_IDS 288
// Slots are spread over recirculation ports by their number modulo this, for ranks at each of 4
// pipelines.
#define SLOT_CLASSES 64
#define PIPELINES 4

#define ARCHITECTURE_PARAMETERS                              \
    inout ingress_intrinsic_metadata_for_deparser_t deparser, \
    inout ingress_intrinsic_metadata_for_tm_t manager
#define DROP deparser.drop_ctl = 1;
#define TO_PORT(port) manager.ucast_egress_port = port; manager.bypass_egress = 1;
#define TO_GROUP(group)              \
    manager.mcast_grp_a = group;     \
    manager.rid = NO_NODE;           \
    manager.bypass_egress = 1;
// Nodes have the number of their group. No copy of the frame's node goes to the ports of its
// exclusion id.
#define FLOOD(group)                 \
    manager.mcast_grp_a = group;     \
    manager.rid = group;             \
    manager.bypass_egress = 1;
// Egress makes the check word.
#define THROUGH_EGRESS_TO_PORT(port) manager.ucast_egress_port = port; manager.bypass_egress = 0;
#define ONCE_MORE manager.ucast_egress_port = m.again; manager.bypass_egress = 1;
#define TO_LATER_PART manager.ucast_egress_port = m.later;
#define TO_EARLIER_PART manager.ucast_egress_port = m.earlier;
#define LEARN deparser.digest_type = LEARN_DIGEST;

