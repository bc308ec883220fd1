// Commands for open-p4studio's `tofino_test_harness`, which reads commands that act on a model of
// the chip. These are the ones that a control plane needs and the harness does not have.
// docs/testing.md says how to build it with this file in the place of its table.cpp.
//
// Each command's answer is lines on standard output; `done` ends it.

#include "table.cpp"

#include <chrono>
#include <epb.h>
#include <ipb.h>
#include <learning-filter.h>
#include <map>
#include <mutex>
#include <packet-replication-engine-reg.h>
#include <packet-replication-engine.h>
#include <rmt-packet-coordinator.h>
#include <sstream>
#include <thread>

void wait_for_idle();

namespace {

// All ports are those of one pipeline, of the first chip.
const int CHIP = 0;
int pipeline = 0;
const int PIPES = 4;
// A port's number is that of its pipeline and its own; the replication engine counts without gaps.
const unsigned PORT_BITS = 7, PORTS = 72;

// Port 68 has no cable: what leaves there comes in again, if this register says so.
const uint64_t RECIRCULATION = 0x273d01c;
const uint32_t RECIRCULATE = 1, CHANNELS = 0xf << 16;
const int RECIRCULATION_BUFFER = 17, RECIRCULATION_CHANNEL = 0;

// Addresses of the deparsers' tables of the pipelines that a multicast group has ports in.
const uint64_t FIRST_DEPARSER_PIPES = 0x27f0000;
// From a pipeline's registers to the next one's.
const uint64_t PIPE_STRIDE = 0x800000;

const uint64_t NODES_OF_PIPELINES = 0x620040;

// Frames that the deparsers of ingress and egress have made copies of for mirroring.
const uint64_t MIRRORED[] = {0x2790938, 0x2798938};

RmtObjectManager *chip() {
    RmtObjectManager *om = nullptr;
    GLOBAL_MODEL->GetObjectManager(CHIP, &om);
    return om;
}

void run_command(const std::string &line) {
    std::stringstream script(line + "\n");
    Script::run("<command>", script);
}

// ---- Entries ----

// Table and key of an entry: what comes before its action.
std::string without_action(const std::string &entry) {
    return entry.substr(0, entry.find_last_of(' ', entry.find('(')));
}

// Where entries of exact tables are: the table's way.
std::map<std::string, int> ways;

// The words to look an exact entry up by, from `<table> {<key>:<value>}`.
std::vector<word_t> hash_input_of(const std::string &entry, const table_config::stage &stage) {
    std::vector<word_t> input(8);
    std::stringstream words(entry);
    std::string word;
    words >> word;
    while (words >> word) {
        size_t colon = word.find(':');
        std::string value = word.substr(colon + 1);
        std::string key = word.substr(0, colon);
        fill_field(key.c_str(), ALL_PIPES, input, stage.hash_input, nullptr, &value[0], 0);
    }
    return input;
}

table_config::stage *last_stage(const std::string &entry, const table_config *&table) {
    unsigned pipes = ALL_PIPES;
    table = table_config::get(entry.substr(0, entry.find(' ')).c_str(), pipes);
    return table ? const_cast<table_config::stage *>(&table->stage_tables.back()) : nullptr;
}

// ---- Words of counters and registers ----

struct Word {
    const table_config *table;
    const table_config::stage *stage;
    int address, entry;

    Word(const table_config *table, unsigned index)
        : table(table), stage(table->stage_tables.data()) {
        address = index / stage->table.entries_per_word();
        entry = index % stage->table.entries_per_word();
    }
    const table_config::field &field() const {
        return stage->table.fields.at(entry).by_name.begin()->second;
    }
    word_t read() const {
        uint64_t data[2] = {0, 0};
        synth2port_read(pipeline, table, stage, address, data);
        word_t word;
        word.data0 = data[0];
        word.data1 = data[1];
        return word;
    }
    uint64_t value() const {
        std::vector<word_t> word{read()};
        return get_sram_field(word, field());
    }
    void write(uint64_t value) const {
        std::vector<word_t> bits(1), mask(1);
        fill_sram_field(bits, field(), value);
        fill_sram_field(mask, field(), ~UINT64_C(0));
        word_t word = (read() & ~mask[0]) | bits[0];
        uint64_t data[2] = {word.data0, word.data1};
        synth2port_write(pipeline, table, stage, address, data);
    }
};

const table_config *table_named(const char *name) {
    unsigned pipes = ALL_PIPES;
    return table_config::get(name, pipes);
}

// ---- What leaves the chip ----

std::mutex mutex;
std::vector<std::pair<int, std::vector<uint8_t>>> frames;
std::vector<std::vector<uint8_t>> digests;

// Called by threads of the model.
void on_frame(int chip, int port, uint8_t *bytes, int length) {
    const int checksum = 4;
    std::lock_guard<std::mutex> lock(mutex);
    frames.emplace_back(port, std::vector<uint8_t>(bytes, bytes + length - checksum));
}

void on_digests(int chip, uint8_t *bytes, int length, int pipe) {
    const int size = 48;
    std::lock_guard<std::mutex> lock(mutex);
    // The model has the first byte last.
    for (int at = 0; at + size <= length; at += size) {
        std::vector<uint8_t> digest(bytes + at, bytes + at + size);
        digests.emplace_back(digest.rbegin(), digest.rend());
    }
}

std::string as_hex(const std::vector<uint8_t> &bytes) {
    std::string text;
    char digits[3];
    for (uint8_t byte : bytes) {
        snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

uint64_t left_to_come_again() {
    auto *counters =
        chip()->epb_counters_lookup(pipeline, RECIRCULATION_BUFFER, RECIRCULATION_CHANNEL);
    return counters->get_egr_bypass_count();
}

uint64_t came_again() {
    auto *counters =
        chip()->ipb_counters_lookup(pipeline, RECIRCULATION_BUFFER, RECIRCULATION_CHANNEL);
    return counters->chnl_parser_send_pkt_.chnl_parser_send_pkt();
}

// Those that the parser dropped.
uint64_t dropped() {
    return chip()->parser_lookup(pipeline, RECIRCULATION_BUFFER)->ingress()->drop_count(
        RECIRCULATION_CHANNEL);
}

// The model takes itself for idle while a frame is about to come in again. That takes it some
// microseconds. Says so if frames get lost, or come again without end.
void wait_for_all_passes() {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
        uint64_t left = left_to_come_again();
        wait_for_idle();
        uint64_t out = left_to_come_again() - came_again() - dropped();
        if (out == 0) {
            // The last one may have come in just now.
            wait_for_idle();
            if (left_to_come_again() == left) return;
        }
        if (std::chrono::steady_clock::now() > end) {
            printf("%" PRIu64 " frames left to come again, and %" PRIu64 " have not\n", left, out);
            return;
        }
        if (out != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

uint32_t mirrored_before;

// The program mirrors nothing. The copies would not be seen: there is no session that they are of.
uint32_t mirrored() {
    uint32_t copies = 0;
    for (uint64_t address : MIRRORED)
        copies += read_reg(CHIP, (volatile void *) (address + pipeline * PIPE_STRIDE));
    return copies;
}

// The filters forget what they have seen, as the driver has them do once it has read it.
void clear_learning_filters() {
    for (int pipe = 0; pipe < PIPES; pipe++) {
        auto *filter = chip()->learning_filter_get(pipe);
        filter->regs_.bft_ctrl_.clear(1);
        filter->clear();
        filter->regs_.bft_ctrl_.clear(0);
    }
}

} // namespace

ScriptCommand(done, "") {
    printf("done\n");
    fflush(stdout);
}

// Ahead of all others.
ScriptCommand(pipeline, "<number>") {
    pipeline = atoi(args);
    // Two bits for each block of the replication engine's nodes: the pipeline that it serves.
    write_reg(CHIP, (volatile void *) NODES_OF_PIPELINES, 0x55555555u * pipeline);
}

ScriptCommand(insert, "<table> [<priority>] {<key>:<value>} <action>({<name>:<value>})") {
    std::string entry = args;
    const table_config *table;
    auto *stage = last_stage(entry, table);
    if (!stage) return;
    std::string id = without_action(entry);
    if (stage->type == table_config::HASH_MATCH) {
        int way = find_unused_way(ALL_PIPES, table, *stage, hash_input_of(id, *stage));
        ways[id] = way;
        entry.insert(entry.find(' '), " " + std::to_string(way));
    }
    run_command("add " + entry);
}

ScriptCommand(delete, "<table> [<priority>] {<key>:<value>} <action>({<name>:<value>})") {
    std::string entry = args;
    const table_config *table;
    auto *stage = last_stage(entry, table);
    if (!stage) return;
    std::string id = without_action(entry);
    std::vector<word_t> nothing(stage->table.width);
    if (stage->type != table_config::HASH_MATCH) {
        int priority = atoi(entry.c_str() + entry.find(' '));
        write_tcam(ALL_PIPES, table, *stage, stage->table, nothing, priority);
    } else if (ways.count(id)) {
        int address = find_exact_addr(ALL_PIPES, *stage, hash_input_of(id, *stage), ways[id]);
        write_sram(ALL_PIPES, table, *stage, stage->table, nothing, address);
        ways.erase(id);
    } else {
        error("no entry %s", id.c_str());
    }
}

ScriptCommand(write_register, "<register> <first> <count> <value>") {
    auto *table = table_named(token(&args));
    unsigned first, count, value;
    if (!table || sscanf(args, "%u %u %u", &first, &count, &value) != 3) {
        error("usage: write_register <register> <first> <count> <value>");
        return;
    }
    for (unsigned index = first; index < first + count; index++)
        Word(table, index).write(value);
}

// One word of each entry: registers of pairs are not read.
ScriptCommand(read, "<register or counter> <first> <count>") {
    auto *table = table_named(token(&args));
    unsigned first, count;
    if (!table || sscanf(args, "%u %u", &first, &count) != 2) {
        error("usage: read <register or counter> <first> <count>");
        return;
    }
    for (unsigned index = first; index < first + count; index++)
        printf("value %" PRIu64 "\n", Word(table, index).value());
}

// A group without ports is none.
ScriptCommand(group, "<number> {<port>}") {
    std::stringstream words(args);
    unsigned number, port;
    words >> number;
    uint64_t low_ports = 0, high_ports = 0;
    while (words >> port) {
        port &= (1u << PORT_BITS) - 1;
        (port < 64 ? low_ports : high_ports) |= UINT64_C(1) << (port % 64);
    }
    bool exists = low_ports || high_ports;
    // Two nodes of the replication engine: what the group is, and which ports. Rows are of two
    // nodes' size.
    const uint64_t LAST_RANK_NODE = 3, LAST_PORTS_NODE = 9 | 1 << 7;
    const int NODE_PIPELINE = 4;
    unsigned row = 2 * number + 2;
    std::array<uint64_t, 2> group_node = {
        {LAST_RANK_NODE | UINT64_C(2) * (row + 1) << 4 | uint64_t(number) << 24, 0}};
    std::array<uint64_t, 2> ports_node = {
        {LAST_PORTS_NODE | uint64_t(pipeline) << NODE_PIPELINE | low_ports << 8,
         low_ports >> 56 | high_ports << 8}};
    auto *engine = chip()->pre_reg_com_get();
    engine->write_rdm(row + 1, BitVector<128>(ports_node));
    engine->write_rdm(row, BitVector<128>(group_node));
    chip()->pre_get(pipeline)->mit(number, exists ? 2 * row : 0);
    // Eight groups in a word, a bit for each pipeline.
    unsigned shift = number % 8 * 4;
    for (int pipe = 0; pipe < PIPES; pipe++) {
        auto offset = FIRST_DEPARSER_PIPES + pipe * PIPE_STRIDE + number / 8 * 4;
        auto *address = (volatile void *) offset;
        uint32_t others = read_reg(CHIP, address) & ~(0xfu << shift);
        write_reg(CHIP, address, others | (exists ? 1u << pipeline << shift : 0));
    }
}

// No copy for a node that the frame names leaves by the port, if the frame has this exclusion id.
ScriptCommand(prune, "<exclusion id> <port>") {
    unsigned id, port;
    if (sscanf(args, "%u %u", &id, &port) != 2) {
        error("usage: prune <exclusion id> <port>");
        return;
    }
    // The drivers write one of two tables while the chip reads the other.
    for (int version = 0; version < 2; version++)
        chip()->pre_reg_com_get()->set_pmt_bit(
            version, id, (port >> PORT_BITS) * PORTS + port % (1u << PORT_BITS), 1);
}

// Tells the parser that a port is in loopback. Of 64 bits of port metadata, the first byte says so.
// The harness's own command `add` takes an entry of that table without effect.
ScriptCommand(loopback, "<port>") {
    set_port_phase0(atoi(args), UINT64_C(1) << 56, 0);
}

// Before frames come in, by the harness's own command `packet`.
ScriptCommand(listen, "") {
    static bool listening = false;
    if (!listening) {
        rmt_transmit_register(on_frame);
        rmt_install_dru_callbacks(on_digests, nullptr, nullptr, nullptr, nullptr);
        // The drivers' default.
        write_reg(
            CHIP, (volatile void *) (RECIRCULATION + pipeline * PIPE_STRIDE),
            RECIRCULATE | CHANNELS);
        // Digests come one by one.
        for (int pipe = 0; pipe < PIPES; pipe++)
            chip()->learning_filter_get(pipe)->regs_.lqt_timeout_.timeout() = 0;
        listening = true;
    }
    mirrored_before = mirrored();
}

// Prints what leaves until the chip is idle again.
ScriptCommand(collect, "") {
    wait_for_all_passes();
    if (mirrored() != mirrored_before) printf("mirrored %u\n", mirrored() - mirrored_before);
    std::lock_guard<std::mutex> lock(mutex);
    for (auto &frame : frames)
        printf("frame %d %s\n", frame.first, as_hex(frame.second).c_str());
    for (auto &digest : digests)
        printf("digest %s\n", as_hex(digest).c_str());
    if (!digests.empty()) clear_learning_filters();
    frames.clear();
    digests.clear();
}
