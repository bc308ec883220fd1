//! The attachment of a program to an interface, and whether it is still in place.

use std::fs::{read_dir, read_to_string};
use std::path::PathBuf;

use aya::programs::links::FdLink;

use super::ingress;

/// A link or filter that attaches a program to an interface.
pub enum Attachment {
    /// A link. It ends with this process's hold of it, unless it is pinned.
    Link {
        /// The hold.
        _held: FdLink,
        /// The file in /proc in which the kernel describes the link.
        info: PathBuf,
    },
    /// A filter at tc ingress, with the number of its owner.
    Filter(u32),
}

impl Attachment {
    /// The attachment by this link; `None` if the kernel does not describe it.
    pub fn by(link: FdLink) -> Option<Self> {
        let id = link.info().ok()?.id();
        let mut files =
            read_dir("/proc/self/fdinfo").ok()?.filter_map(|file| Some(file.ok()?.path()));
        let info = files.find(|file| {
            read_to_string(file).is_ok_and(|text| field(&text, "link_id") == Some(id))
        })?;
        Some(Self::Link { _held: link, info })
    }

    /// Whether this attachment still has the program serve the interface. A process may read that
    /// about its own links; the kernel's lists of programs need CAP_SYS_ADMIN.
    pub fn serves(&self, index: u32, program: u32) -> bool {
        match self {
            Self::Link { info, .. } => read_to_string(info).is_ok_and(|text| {
                // A link that was detached names no interface.
                (field(&text, "ifindex"), field(&text, "prog_id")) == (Some(index), Some(program))
            }),
            Self::Filter(owner) => ingress::filtered(index, *owner) == Some(program),
        }
    }
}

/// A number of a text of lines `name:\tnumber`.
fn field(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn what_the_kernel_tells_of_a_link_is_read() {
        let text = "pos:\t0\nlink_type:\ttcx\nlink_id:\t17\nprog_tag:\ta04f5eef06a7f555\n\
                    prog_id:\t42\nifindex:\t3\n";
        let fields =
            ["link_id", "prog_id", "ifindex", "link_type", "attach"].map(|name| field(text, name));
        assert_eq!(fields, [Some(17), Some(42), Some(3), None, None]);
    }
}
