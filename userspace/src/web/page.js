// Follows /status.json once a second. All text goes in by textContent: names of jobs are strangers'.
"use strict";

const PERIOD_MS = 1000;
// The last answer, and when it came, for rates.
let before = null;

function row(cells) {
  const row = document.createElement("tr");
  for (const [text, style] of cells) {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (style) cell.className = style;
    row.append(cell);
  }
  return row;
}

function fill(id, rows) {
  document.getElementById(id).replaceChildren(...rows.map(row));
}

// "waits for ranks 1, 3 to join, for 12 s"
function waits(job) {
  if (job.waits_for_them === null) return "";
  const ranks = (job.waits_for.length === 1 ? "rank " : "ranks ") + job.waits_for.join(", ");
  const since = job.waiting_seconds === null ? "" : `, for ${job.waiting_seconds.toFixed(0)} s`;
  return `waits for ${ranks} ${job.waits_for_them}${since}`;
}

function about(status) {
  const root = status.role.root;
  const role = root
    ? `${root.slots_free} of ${root.slots} slots free`
    : `combiner below ${status.role.combiner.parent}, ${status.role.combiner.cells} cells`;
  return `${status.version}, ${status.data_plane}: ${status.attachment}; ${role}`;
}

function show(status, now) {
  const seconds = before && (now - before.now) / 1000;
  // How fast a counter grows; null the first time.
  const per_second = (list, key, entry, field) => {
    const old = before && before.status[list].find((old) => old[key] === entry[key]);
    return old ? (entry[field] - old[field]) / seconds : null;
  };
  const megabits = (port, field) => {
    const bytes = per_second("ports", "name", port, field);
    return [bytes === null ? "" : ((bytes * 8) / 1e6).toFixed(1), "number"];
  };
  document.getElementById("about").textContent = about(status);
  fill("jobs", status.jobs.map((job) => [
    [job.number ?? "–", "number"],
    [job.name],
    [job.state, job.state === "aborted" ? "wrong" : ""],
    [`${job.members.filter((member) => member.here).length} of ${job.world_size}`, "number"],
    [waits(job), "wrong"],
  ]));
  fill("ranks", status.jobs.flatMap((job) => job.members.map((member) => [
    [job.name],
    [member.rank, "number"],
    [member.address],
    [member.rack],
    [member.left ? "left" : member.here ? member.results ?? "not ready" : "lost"],
    [member.waited_for_seconds.toFixed(1), "number"],
  ])));
  fill("ports", status.ports.map((port) => [
    [port.name],
    [port.hook],
    megabits(port, "received_bytes"),
    megabits(port, "sent_bytes"),
    [port.faults.join("; "), "wrong"],
  ]));
  // What has a name, a count and a sentence; those that never happened are left out.
  const counted = (list, key, field) => {
    fill(list, status[list].filter((count) => count[field] > 0).map((count) => {
      const rate = per_second(list, key, count, field);
      return [
        [count[key]],
        [count[field], "number"],
        [rate === null ? "" : rate.toFixed(0), "number"],
        [count.help],
      ];
    }));
  };
  counted("packets", "outcome", "packets");
  counted("refusals", "reason", "times");
  before = { status, now };
}

function trouble(text) {
  const line = document.getElementById("trouble");
  line.textContent = text;
  line.hidden = text === "";
}

async function follow() {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const status = await answer.json();
    show(status, performance.now());
    trouble(status.jobs_unknown ? `Jobs are unknown: ${status.jobs_unknown}` : "");
  } catch (error) {
    trouble(`No answer from the aggregator: ${error.message}`);
  }
  setTimeout(follow, PERIOD_MS);
}

follow();
