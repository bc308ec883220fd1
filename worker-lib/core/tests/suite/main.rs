//! What the worker computes and sends, without I/O.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`model`] | model checking: every state that small jobs can get into |
//! | [`numerics`] | elements to lanes and back, against exact rational arithmetic |
//! | [`unchecked_maxima`] | maxima without check words: no rank returns a wrong one |
//! | [`worked_example`] | the calls of the specification's example, byte by byte |

mod model;
mod numerics;
mod unchecked_maxima;
mod worked_example;
