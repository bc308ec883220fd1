//! The bounds of a host's world.

use std::fmt;

/// The bounds of a world.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ranks: u16,
    /// The first ranks, as many as this, share memory.
    pub sharing: usize,
    pub slots: u16,
    pub rounds: usize,
    /// How many of the ranks that share memory may die.
    pub deaths: usize,
    /// How often ranks send something again, all together, if that is bounded.
    pub resends: Option<u8>,
    /// Whether a stranger sends these the RESULTs that they await, at any time.
    pub forges: bool,
}

impl Bounds {
    /// A world in which nobody dies.
    pub const fn new(ranks: u16, sharing: usize, slots: u16, rounds: usize) -> Self {
        Self { ranks, sharing, slots, rounds, deaths: 0, resends: None, forges: false }
    }

    /// The world in which all ranks that share memory may die.
    pub const fn dying(self) -> Self {
        Self { deaths: self.sharing, ..self }
    }

    pub const fn resending(self, times: u8) -> Self {
        Self { resends: Some(times), ..self }
    }

    pub const fn forging(self) -> Self {
        Self { forges: true, ..self }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { ranks, sharing, slots, rounds, deaths, resends, forges } = self;
        write!(f, "{ranks} | {slots} | {rounds} | {sharing} share memory, {deaths} may die")?;
        if let Some(resends) = resends {
            write!(f, ", at most {resends} resends")?;
        }
        if *forges { f.write_str(", forged RESULTs") } else { Ok(()) }
    }
}
