//! Model checking: every state that small jobs can get into, over the real worker engine and the
//! real slot machine.
//!
//! Stateright searches breadth first; its states are those of [`world`]: engines
//! ([`switchml_worker_core::engine::Engine`]), an aggregator
//! ([`switchml_protocol::root::admission::serve`]) and a network that loses, repeats and reorders
//! without bound. What is checked are the [`promises`](promises::RIGHT_SUMS). Rules of the
//! protocol can be taken out one at a time ([`rules`]), which the search must notice.
//!
//! # What keeps the search finite, and why nothing is missed
//!
//! - **The network is a set.** What was once sent may arrive at any time, any number of times, or
//!   never. So loss, repetition and reordering need no separate events, and a resend adds nothing:
//!   it is the same packet, except for an unused flag and its aux. The search asserts this whenever
//!   an engine resends. The contribution that follows an EMPTY one has lanes, and is a different
//!   packet: so engines are also told apart by the chunks sent in full.
//! - **Aux** matters only to one question: whether a PENDING answers a packet sent after the news
//!   that a rank has left. So it is the number of departures that the sender knew of.
//! - **Time moves only through alarms.** An engine's answer to a packet depends on the chunks that
//!   it has outstanding, never on the time. So engines are told apart by what they sent, what they
//!   got, what PENDING told them of each chunk and how often their timer expired, not by clocks and
//!   estimates; each engine's number of outstanding chunks is compared with that at each step. An
//!   alarm sets an engine's clock to its deadline.
//! - **PENDING, REJECT and ROOM arrive at once or never.** PENDING only changes what its chunk's
//!   entry says, and a later one overwrites it; so one that is late leaves an engine as it would be
//!   had it come at once and the newer ones been lost. A REJECT of an aborted job or of a poisoned
//!   round is what the next resend would bring just as well. Where workers leave, an old PENDING
//!   means more: there it is kept. A late ROOM makes an engine send lanes, as its timer does where
//!   ranks have zeros, unless it has sent them since.
//! - **A RESULT to one** that says what a RESULT to all said is not kept a second time; that the
//!   engine takes both alike is asserted.
//! - **Workers of the first session rest once the second one has begun**, except what the
//!   aggregator says from then on. They could have done all else before: it does not depend on the
//!   change, and what they send from then on is dropped.
//! - **Combiners** ([`tree`]) are searched with all that they may send and forget.
//! - **Aggregators that die** in the middle of a job at several are a world of their own
//!   ([`moves`]), whose slots and packets are ideal: the other worlds search theirs.
//! - **Ranks that share memory** are a world of their own ([`host`]): there, what they do is cut
//!   into steps at each access to a shared word. So are ranks that all share slots
//!   ([`shared_slots`]), where taking a lock is a step, too.
//! - **Lanes** hold [tallies](tally): a sum says who is in it and how often. What else they might
//!   hold, packed fields or not, neither engine nor slot machine looks at.
//!
//! The checker tells states apart by a 64-bit hash; at a million states, two of them share one with
//! a probability of 3e-8.
//!
//! `SWITCHML_MODEL=large` searches larger bounds too.

#![expect(clippy::disallowed_methods, reason = "SWITCHML_MODEL, and how long a search takes")]

mod aggregator;
mod cells;
mod fair;
mod host;
mod moves;
mod packets;
mod plan;
mod promises;
mod properties;
mod published;
mod rules;
mod search;
mod search_host;
mod shared_slots;
mod tally;
mod tree;
mod worker;
mod world;

mod removals;
mod searches;
