// Follows /status.json once a second. All text goes in by textContent: jobs' names are strangers'.
"use strict";

const PERIOD_MS = 1000;
// A daemon that hangs takes connections, and does not answer.
const PATIENCE_MS = 5000;
// As many as the graph has room for: see its viewBox.
const PERIODS = 60;
// The last answer, and when it came, for rates.
let before = null;

const at = (id) => document.getElementById(id);
const clone = (id) => at(id).content.firstElementChild.cloneNode(true);

// ---- Numbers and words

const decimal = new Intl.NumberFormat("en");
const count = (value, one, many = `${one}s`) =>
  `${decimal.format(value)} ${value === 1 ? one : many}`;

// Three digits and a prefix: "9.31 Gb/s".
function scaled(value, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let prefix = 0;
  while (value >= 999.5 && prefix < prefixes.length - 1) {
    value /= 1000;
    prefix += 1;
  }
  const digits = prefix === 0 || value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)}\u00a0${prefixes[prefix]}${unit}`;
}

const bits = (bytesPerSecond) => scaled(bytesPerSecond * 8, "b/s");

// The two largest units: "3 d 4 h". Numbers and units stay on one line, here and elsewhere.
function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}\u00a0s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => seconds >= length);
  const parts = units.slice(first, first + 2).flatMap(([unit, length]) => {
    const whole = Math.floor(seconds / length);
    seconds -= whole * length;
    return whole > 0 ? [`${whole}\u00a0${unit}`] : [];
  });
  return parts.join("\u00a0");
}

function short(seconds) {
  return seconds < 1e-3 ? `${Math.round(seconds * 1e6)}\u00a0µs` :
    seconds < 1 ? `${(seconds * 1e3).toPrecision(2)}\u00a0ms` : `${seconds.toPrecision(2)}\u00a0s`;
}

// "rank 3", "ranks 1, 4–7"
function ranks(list) {
  const spans = [];
  for (const rank of list) {
    const last = spans.at(-1);
    if (last && last[1] + 1 === rank) last[1] = rank;
    else spans.push([rank, rank]);
  }
  const words = spans.map(([from, to]) =>
    from === to ? from : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`);
  return (list.length === 1 ? "rank " : "ranks ") + words.join(", ");
}

// "waits for ranks 1, 3 to join, for 12 s"
function waits(job) {
  if (job.waits_for_them === null) return "";
  const since = job.waiting_seconds === null ? "" : `, for ${duration(job.waiting_seconds)}`;
  return `waits for ${ranks(job.waits_for)} ${job.waits_for_them}${since}`;
}

// ---- Putting it in

// Text that did not change stays, so that it can be selected.
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Shows these elements and no others, in this order; those that are there already stay open.
function arrange(parent, elements) {
  const same = parent.childElementCount === elements.length &&
    elements.every((element, index) => parent.children[index] === element);
  if (!same) parent.replaceChildren(...elements);
}

// Shows an element for each entry: the one that the entry of this name had before, or one that is
// made from the template.
function each(parent, template, list, name, fill) {
  const known = new Map([...parent.children].map((element) => [element.dataset.name, element]));
  arrange(parent, list.map((entry) => {
    const element = known.get(name(entry)) ?? clone(template);
    element.dataset.name = name(entry);
    fill(element, entry);
    return element;
  }));
}

// Rows of [key, value, figure, note, class, name]; without a name the key is it.
function rows(parent, list) {
  const name = ([key, , , , , name]) => name ?? key;
  each(parent, "row", list, name, (row, [key, value, figure, note, style]) => {
    row.className = `row ${style ?? ""}`;
    put(row.querySelector(".key"), key);
    put(row.querySelector(".value"), value);
    put(row.querySelector(".figure"), figure);
    put(row.querySelector(".note"), note);
  });
}

// ---- What is shown

// The worst that is true of ports and jobs, in a word, and all in a line.
function overall(status) {
  if (status.jobs_unknown) return ["trouble", "Jobs are unknown"];
  const of = (is) => status.jobs.filter(is).length;
  const aborted = of((job) => job.state === "aborted");
  const waiting = of((job) => job.waits_for_them !== null);
  const running = status.jobs.length - aborted - waiting;
  const faulty = status.ports.filter((port) => port.faults.length > 0).length;
  const words = [
    [faulty, (ports) => `${count(ports, "port")} with faults`],
    [aborted, (jobs) => `${count(jobs, "job")} aborted`],
    [waiting, (jobs) => `${count(jobs, "job waits", "jobs wait")} for ranks`],
    [running, (jobs) => `${count(jobs, "job runs", "jobs run")}`],
  ].filter(([some]) => some > 0).map(([some, say]) => say(some));
  const state = aborted || faulty ? "trouble" : waiting ? "waiting" : running ? "running" : "idle";
  return [state, words.join(", ") || "Idle"];
}

function security({ tls, client_certificates, tokens, certificate_expires }) {
  const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 10);
  // One without an end signs itself, until the year 4096.
  const until = certificate_expires < 4e9 && certificate_expires ? ` until ${day(certificate_expires)}` : "";
  const first = !tls ? "no TLS" : `TLS${until}${client_certificates ? ", client certificates" : ""}`;
  return tokens ? `${first}, job tokens` : tls ? first : "no TLS, trusts everybody";
}

function facts(status) {
  const root = status.role.root;
  const room = root
    ? ["Room", `${decimal.format(root.slots_free)} of ${count(root.slots, "slot")} free`]
    : ["Combiner", `below ${status.role.combiner.parent}, ` +
        count(status.role.combiner.cells, "cell")];
  return [
    ["Up", duration(status.uptime_seconds)],
    ["Version", status.version],
    ["Security", security(status.security)],
    room,
    ["Data plane", `${status.data_plane}: ${status.attachment}`],
  ];
}

function showFacts(status) {
  const list = at("facts");
  facts(status).forEach(([name, value], index) => {
    let fact = list.children[index];
    if (!fact) {
      fact = document.createElement("div");
      fact.append(document.createElement("dt"), document.createElement("dd"));
      list.append(fact);
    }
    put(fact.firstElementChild, name);
    put(fact.lastElementChild, value);
  });
}

// What concerns no job, the worst first; jobs say for themselves what is wrong with them.
function problems(status) {
  const list = [];
  if (status.jobs_unknown) list.push(`Jobs are unknown: ${status.jobs_unknown}`);
  for (const port of status.ports) {
    for (const fault of port.faults) list.push(`Port ${port.name}: ${fault}`);
  }
  const root = status.role.root;
  if (root && root.slots_free === 0) {
    list.push("No slot is free: more jobs can start when one of those below has ended.");
  }
  return list;
}

function showProblems(list) {
  each(at("problems"), "problem", list, (text) => text, put);
}

// The job that needs somebody first.
function urgency(job) {
  if (job.state === "aborted") return 0;
  return job.waits_for_them !== null ? 1 : 2;
}

function graph(svg, rates) {
  const peak = Math.max(...rates, 1);
  const first = PERIODS - rates.length;
  const points = rates.map((rate, index) => [first + index, 19.5 - (rate / peak) * 19]);
  const line = points.map(([x, y], index) => `${index ? "L" : "M"}${x} ${y.toFixed(2)}`).join("");
  svg.querySelector(".line").setAttribute("d", line);
  const area = points.length ? `${line}L${points.at(-1)[0]} 20L${first} 20Z` : "";
  svg.querySelector(".area").setAttribute("d", area);
  svg.setAttribute("aria-label", `at most ${bits(Math.max(...rates, 0))}`);
}

function showSpeed(box, throughput) {
  const rates = throughput?.bytes_per_second ?? [];
  box.hidden = rates.length === 0;
  if (box.hidden) return;
  const seconds = rates.length * throughput.period_seconds;
  put(box.querySelector(".rate"), bits(rates.at(-1)));
  graph(box.querySelector("svg"), rates);
  const most = bits(Math.max(...rates));
  put(box.querySelector(".recent"), `last ${duration(seconds)}, at most ${most}`);
  put(box.querySelector(".total"), `${scaled(throughput.bytes, "B")} in all`);
}

function member(rank) {
  const where = [rank.address, rank.rack && `rack ${rank.rack}`, rank.host && `host ${rank.host}`]
    .filter(Boolean).join(", ");
  const waited = rank.waited_for_seconds >= 0.1
    ? `waited for ${rank.waited_for_seconds.toFixed(1)} s` : "";
  const late = rank.late_seconds > 0 ? `${short(rank.late_seconds)} late` : "";
  const resent = rank.resent > 0
    ? `${count(rank.resent, "packet")} sent again, ${decimal.format(rank.lost)} of them lost, ` +
      `${decimal.format(rank.pending)} to wait for others`
    : "";
  const results = rank.results === null ? "not ready" : `results come ${rank.results}`;
  const note = rank.left ? "left"
    : rank.here ? [results, resent].filter(Boolean).join("; ") : "lost";
  const figure = [waited, late].filter(Boolean).join(", ");
  return [`rank ${rank.rank}`, where, figure, note, rank.left || rank.here ? "" : "bad"];
}

// This aggregator among those of the job, its share of large calls, and the others.
function stripe({ aggregators, share, other_aggregators, in_place_of }) {
  if (in_place_of !== null) return `, in place of the aggregator at ${in_place_of}, which was lost`;
  if (aggregators === 1) return "";
  const part = share === null ? "" : `, with ${(100 * share).toFixed(1)} % of large calls`;
  const others = other_aggregators.length > 0 ? `, beside ${other_aggregators.join(", ")}` : "";
  return `, one of ${aggregators} aggregators${part}${others}`;
}

function showJob(card, job) {
  const part = (selector) => card.querySelector(selector);
  const isAborted = job.state === "aborted";
  const wrong = isAborted ? job.reason ?? "the reason is not known" : waits(job);
  const state = isAborted ? "aborted" : wrong ? "waiting" : "running";
  card.dataset.state = state;
  const here = job.members.filter((rank) => rank.here).length;
  const size = here === job.world_size
    ? count(here, "rank") : `${decimal.format(here)} of ${count(job.world_size, "rank")} here`;
  const of = job.number === null ? "" : `job ${job.number}, `;
  put(part(".name"), job.name);
  put(part(".state"), state);
  put(part(".what"), `${of}${size}, for ${duration(job.age_seconds)}${stripe(job)}`);
  put(part(".wrong"), wrong);
  put(part(".slow"), job.slow === null || isAborted ? "" : `Slow: ${job.slow}.`);
  showSpeed(part(".speed"), job.throughput);
  put(part("summary"), count(job.members.length, "rank"));
  put(part(".rooms"), job.slots === 0 ? "" :
    count(job.slots, "slot") + (job.lanes > 0 ? `, ${job.lanes} lanes a packet` : ""));
  rows(part(".rows"), job.members.map(member));
}

function showJobs(status) {
  const first = [...status.jobs].sort((a, b) => urgency(a) - urgency(b));
  each(at("jobs"), "job", first, (job) => `${job.number ?? ""} ${job.name}`, showJob);
  at("idle").hidden = status.jobs.length > 0 || status.jobs_unknown !== null;
}

function showPorts(status, rate) {
  const list = at("ports").querySelector(".rows");
  at("ports").hidden = status.ports.length === 0;
  const speeds = status.ports.map((port) => port.link_speed).filter((speed) => speed !== null);
  const isSlowest = (port) => port.link_speed < Math.max(...speeds) &&
    port.link_speed === Math.min(...speeds);
  each(list, "port", status.ports, (port) => port.name, (card, port) => {
    const part = (selector) => card.querySelector(selector);
    card.dataset.state = port.faults.length > 0 ? "aborted" : "running";
    put(part(".name"), port.name);
    put(part(".link"), port.link_speed === null ? "" : `${scaled(port.link_speed, "b/s")} link`);
    for (const [way, field] of [["in", "received_bytes"], ["out", "sent_bytes"]]) {
      const bytes = rate("ports", "name", port, field);
      put(part(`.${way}`), bytes === null ? "" : bits(bytes));
      const used = port.link_speed ? Math.min((bytes ?? 0) * 8 / port.link_speed, 1) : 0;
      part(`.${way}-part`).style.width = `${(used * 100).toFixed(1)}%`;
      part(`.${way}-part`).parentElement.hidden = port.link_speed === null;
    }
    const drops = [["received", port.receive_drops], ["to be sent", port.send_drops],
      ["that XDP sent", port.xdp_drops]]
      .filter(([, frames]) => frames > 0)
      .map(([what, frames]) => `; ${count(frames, "frame")} ${what} dropped`).join("");
    const slow = isSlowest(port) ? "; the slowest link: jobs with ranks there go at its speed" : "";
    put(part(".note"), port.faults.length > 0 ? port.faults.join("; ") : port.hook + slow + drops);
  });
}

function showEnded(status) {
  const list = status.ended_lately;
  const box = at("ended");
  box.hidden = list.length === 0;
  put(box.querySelector(".count"), decimal.format(list.length));
  rows(box.querySelector(".rows"), list.map((job, index) => {
    const what = (job.number === null ? "" : `job ${job.number}, `) + count(job.world_size, "rank");
    const style = job.ending === "finished" ? "" : "bad";
    const why = job.reason ?? job.ending;
    // Jobs may have one name.
    return [job.name, what, `${duration(job.ago_seconds)} ago`, why, style, `${index}`];
  }));
}

// What has a name, a count and a sentence; those that never happened are left out.
function showCounts(id, list, key, field, rate) {
  const some = list.filter((entry) => entry[field] > 0);
  const box = at(id);
  box.hidden = some.length === 0;
  const total = some.reduce((sum, entry) => sum + entry[field], 0);
  put(box.querySelector(".count"), decimal.format(total));
  rows(box.querySelector(".rows"), some.map((entry) => {
    const grows = rate(id, key, entry, field);
    const speed = grows ? `${decimal.format(Math.round(grows))} a second` : "";
    return [entry[key], speed, decimal.format(entry[field]), entry.help];
  }));
}

// The time that this part of a histogram stays below.
function below(times, part) {
  const total = times.buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  let left = total * part;
  const bucket = times.buckets.find((bucket) => (left -= bucket.count) <= 0);
  return bucket.below_seconds === null ? "longer" : `below ${short(bucket.below_seconds)}`;
}

function showTimes(status) {
  const kinds = [
    ["round trips", status.round_trips, "from a rank's packet to its result, as ranks report it"],
    ["rounds", status.round_times, "from a round's first packet to its last, one round in 512"],
  ].filter(([, times]) => times && times.buckets.some((bucket) => bucket.count > 0));
  at("times").hidden = kinds.length === 0;
  rows(at("times").querySelector(".rows"), kinds.map(([name, times, note]) =>
    [name, "", `half ${below(times, 0.5)}, 99 % ${below(times, 0.99)}`, note]));
}

function show(status, now) {
  const seconds = before && (now - before.now) / 1000;
  // How fast a counter grows; null the first time, and when it has begun again.
  const rate = (list, key, entry, field) => {
    const old = before && before.status[list].find((old) => old[key] === entry[key]);
    return old && old[field] <= entry[field] ? (entry[field] - old[field]) / seconds : null;
  };
  const [state, headline] = overall(status);
  document.body.dataset.state = state;
  document.title = `${headline} – ${status.host}`;
  put(at("host"), status.host);
  put(at("headline"), headline);
  showFacts(status);
  showProblems(problems(status));
  showJobs(status);
  showPorts(status, rate);
  showTimes(status);
  showEnded(status);
  showCounts("refusals", status.refusals, "reason", "times", rate);
  showCounts("packets", status.packets, "outcome", "packets", rate);
  before = { status, now, clock: new Date() };
}

// What was seen last stays, in grey.
function showDown(why) {
  document.body.dataset.state = "down";
  document.title = `No answer – ${before ? before.status.host : location.host}`;
  if (!before) put(at("host"), location.host);
  put(at("headline"), "No answer");
  const since = before
    ? ` What follows is from ${before.clock.toLocaleTimeString("en-GB")}, when it last answered.`
    : "";
  showProblems([`The aggregator does not answer: ${why}.${since}`]);
}

async function follow() {
  try {
    const answer = await fetch("status.json", {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    show(await answer.json(), performance.now());
  } catch (error) {
    showDown(error.message);
  }
  setTimeout(follow, PERIOD_MS);
}

const bench = (rank) =>
  `switchml-worker bench --aggregator ${location.host} --rank ${rank} --world-size 2`;
put(at("example"), `${bench(0)}\n${bench(1)}`);
follow();
