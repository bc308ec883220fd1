//! What the worker computes and sends, without I/O.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`failover`] | aggregators that die in mid-call: another one goes on, to the bit |
//! | [`model`] | model checking: every state that small jobs can get into |
//! | [`numerics`] | elements to lanes and back, against exact rational arithmetic |
//! | [`superpackets`] | which packets go out together |
//! | [`unchecked_maxima`] | maxima without check words: no rank returns a wrong one |
//! | [`worked_example`] | the calls of the specification's example, byte by byte |

mod failover;
mod model;
mod numerics;
mod superpackets;
mod unchecked_maxima;
mod worked_example;
