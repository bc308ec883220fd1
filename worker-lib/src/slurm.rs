//! What a task of Slurm knows of its step: its rank, the name of the job, and where ranks meet. All
//! tasks compute the same from their environment, so `srun` alone starts a job.

use crate::error::Error;
use crate::values::number;

/// The ports where ranks meet: so many, from the first. They are below those that Linux gives to
/// connections (32768 and higher), and above the well-known ones, Slurm's own among them.
const FIRST_PORT: u64 = 10_000;
const PORTS: u64 = 20_000;
/// What a job's number adds to the port: the golden section of [`PORTS`], without a common divisor.
/// The ports of jobs with near numbers are far apart then, whichever of their steps run.
const STRIDE: u64 = 12_361;

/// A step, for one of its tasks.
pub(crate) struct Step {
    pub rank: u32,
    pub world_size: u32,
    /// The name of the job, equal for all tasks of this step and for no others, also of other
    /// clusters and after a restart by Slurm.
    pub job: String,
    /// Where ranks meet: the node that has rank 0, unless the user distributes tasks arbitrarily.
    pub node: Option<String>,
    /// The port there. Ranks of another job that has the same are refused, because of its name.
    pub port: Option<u16>,
}

impl Step {
    /// The step that this process is a task of, if it is one. Slurm sets the number of a step's
    /// tasks only for tasks of a step.
    ///
    /// # Errors
    /// [`Error::Setting`] if a number is none.
    pub fn read(
        text: impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Option<Self>, Error> {
        let rank = number("SLURM_PROCID", text("SLURM_PROCID")?)?;
        let world_size = number("SLURM_STEP_NUM_TASKS", text("SLURM_STEP_NUM_TASKS")?)?;
        let (Some(rank), Some(world_size)) = (rank, world_size) else { return Ok(None) };
        let (Some(id), Some(step)) = (text("SLURM_JOB_ID")?, text("SLURM_STEP_ID")?) else {
            return Ok(None);
        };
        let cluster = text("SLURM_CLUSTER_NAME")?;
        let cluster = cluster.map(|name| format!("{name}-")).unwrap_or_default();
        let restarts = text("SLURM_RESTART_COUNT")?.map(|count| format!("-{count}"));
        let job = format!("slurm-{cluster}{id}.{step}{}", restarts.unwrap_or_default());
        let node = text("SLURM_STEP_NODELIST")?.and_then(|nodes| first_node(&nodes));
        Ok(Some(Self { rank, world_size, job, node, port: port(&id, &step) }))
    }
}

/// The first of these nodes, which are in Slurm's notation (slurm.conf(5)): names with commas
/// between, in which brackets hold numbers and ranges of numbers, such as `rack[0-3]_blade[08,10]`.
fn first_node(nodes: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), nodes);
    while let Some(at) = rest.find(['[', ',']) {
        name += &rest[..at];
        let Some(numbers) = rest[at..].strip_prefix('[') else {
            rest = "";
            break;
        };
        let (numbers, after) = numbers.split_once(']')?;
        name += numbers.split(['-', ',']).next()?;
        rest = after;
    }
    name += rest;
    Some(name).filter(|name| !name.is_empty())
}

/// The port for a step of a job, unless their numbers are none.
fn port(job: &str, step: &str) -> Option<u16> {
    let (job, step): (u32, u32) = (job.parse().ok()?, step.parse().ok()?);
    let port = FIRST_PORT + (STRIDE * u64::from(job) + u64::from(step)) % PORTS;
    u16::try_from(port).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists are those of slurm.conf(5) and Slurm::Hostlist(3), and some in their notation; the
    /// names are what `scontrol show hostnames` prints first.
    #[test]
    fn ranks_meet_at_the_first_node() {
        for (nodes, first) in [
            ("login", "login"),
            ("alpha,beta,gamma", "alpha"),
            ("linux[0-64,128]", "linux0"),
            ("lx[15,18,32-33]", "lx15"),
            ("node1,node[2-5,12]", "node1"),
            ("n[1-4,7],m2", "n1"),
            // Leading zeros mean a fixed number of digits.
            ("linux[0000-1023]", "linux0000"),
            ("n[09-11]", "n09"),
            ("n[000,01]", "n000"),
            // Several brackets.
            ("rack[0-63]_blade[0-41]", "rack0_blade0"),
            ("r[2,4]n[007-009],x", "r2n007"),
            ("gpu-a.b-[3]", "gpu-a.b-3"),
        ] {
            assert_eq!(first_node(nodes).as_deref(), Some(first), "{nodes}");
        }
        for none in ["", ",", "n[1-4"] {
            assert_eq!(first_node(none), None, "{none}");
        }
    }

    #[test]
    fn each_step_has_a_port_of_its_own() {
        // 10,000 + (12,361 x job + step) mod 20,000, by hand.
        for (job, step, expected) in [
            ("0", "0", 10_000),
            ("1", "0", 22_361),
            ("1", "1", 22_362),
            ("2", "0", 14_722),
            ("20000", "7639", 17_639),
            // The largest number of a job, unless MaxJobId says otherwise; a step that is a shell.
            ("67043328", "0", 27_408),
            ("1", "4294967290", 29_651),
        ] {
            assert_eq!(port(job, step), Some(expected), "{job}.{step}");
        }
        assert_eq!((port("", "0"), port("1", "batch")), (None, None));
    }

    #[test]
    fn steps_of_near_jobs_do_not_meet() {
        // 80 jobs in a row, each with steps 0 to 99.
        let jobs: Vec<_> = (0..80).map(|job| port(&(4711 + job).to_string(), "0")).collect();
        let mut ports: Vec<_> = jobs.into_iter().flatten().collect();
        ports.sort_unstable();
        assert_eq!(ports.len(), 80);
        assert!(ports.windows(2).all(|two| two[1] - two[0] >= 100), "{ports:?}");
    }
}
