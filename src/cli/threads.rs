//! Thread pools: as many threads as the user wants, or as the system allows.

use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Maximum number of threads; buffers are divided among them, so more do not help.
const MOST: usize = 512;

/// Returns the number of threads, and a note if it differs from the number asked for.
fn wanted(asked: Option<usize>) -> (usize, Option<String>) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let most = MOST.max(cores);
    match asked {
        Some(n) if n > most => (most, Some(format!("{most} threads instead of {n}: more are of no use"))),
        Some(n) => (n.max(1), None),
        None => (cores, None),
    }
}

/// Builds a pool of `n_wanted` threads, or of half as many, and so on, if limits of processes or memory are reached.
fn try_pool(n_wanted: usize) -> anyhow::Result<(ThreadPool, usize)> {
    let mut n = n_wanted;
    loop {
        match ThreadPoolBuilder::new().num_threads(n).build() {
            Ok(pool) => return Ok((pool, n)),
            Err(_) if n > 1 => {
                n /= 2;
                // Threads that were started need a moment to end.
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => anyhow::bail!(
                "cannot start a thread: {error}: the limit of processes (`ulimit -u`) or of memory (`ulimit -v`) is \
                 reached"
            ),
        }
    }
}

fn fewer(n: usize, n_wanted: usize) -> String {
    format!("{n} of {n_wanted} threads: the limit of processes (`ulimit -u`) or of memory allows no more")
}

/// Builds a pool for one piece of work. Also returns a note if it is smaller than asked for.
pub(crate) fn pool(asked: usize) -> anyhow::Result<(ThreadPool, Option<String>)> {
    let (n_wanted, note) = wanted(Some(asked));
    let (pool, n) = try_pool(n_wanted)?;
    Ok((pool, if n < n_wanted { Some(fewer(n, n_wanted)) } else { note }))
}

/// Starts the threads of the whole program. Returns a note if they are fewer than asked for.
pub(crate) fn start(asked: Option<u16>) -> anyhow::Result<Option<String>> {
    let (n_wanted, note) = wanted(asked.map(usize::from));
    // The global pool can be built only once, so a probe finds out how many threads are possible.
    let (probe, mut n) = try_pool(n_wanted)?;
    drop(probe);
    if n < n_wanted {
        // Leaves threads for other uses; those of the probe are about to end.
        n = (n / 2).max(1);
        std::thread::sleep(Duration::from_millis(50));
    }
    if let Err(error) = ThreadPoolBuilder::new().num_threads(n).build_global() {
        anyhow::bail!("cannot start {n} threads: {error}");
    }
    Ok(if n < n_wanted { Some(fewer(n, n_wanted)) } else { note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_are_capped_with_a_note() {
        assert_eq!(wanted(Some(3)), (3, None));
        let (n, note) = wanted(Some(65_535));
        assert!((MOST..65_535).contains(&n));
        assert_eq!(note.unwrap(), format!("{n} threads instead of 65535: more are of no use"));
        assert!(wanted(None).0 >= 1);
    }
}
