//! How much memory a process takes, and a limit that the kernel holds it to.

use std::process::Command;

use crate::KitError;

/// The most physical memory that a running process has had at a time, in bytes: `VmHWM`, which the kernel counts. It
/// includes the pages of the program itself.
///
/// # Errors
///
/// [`KitError::NotRunning`] if there is no such process.
pub fn peak_rss(pid: u32) -> Result<u64, KitError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes << 10).ok_or_else(|| KitError::NotRunning { what: format!("process {pid}") })
}

/// The same command, with a limit on the memory that it may write to (`RLIMIT_DATA`: heap, stacks of threads and
/// private mappings, whether they are touched or not). Above it the kernel gives no more, and the process aborts. Only
/// the program, its arguments and its folder are taken over.
pub fn limited(command: &Command, bytes: u64) -> Command {
    let mut limited = Command::new("sh");
    limited.arg("-c").arg(format!("ulimit -d {} && exec \"$0\" \"$@\"", bytes >> 10));
    limited.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_process_and_no_more_is_given_than_the_limit() {
        let own = peak_rss(std::process::id()).unwrap();
        let touched = vec![1_u8; 64 << 20];
        assert!(peak_rss(std::process::id()).unwrap() > own.max(touched.len() as u64));
        assert!(peak_rss(u32::MAX).is_err());

        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]);
        let enough = limited(&dd, 300 << 20).output().unwrap();
        assert!(enough.status.success(), "{enough:?}");
        let too_little = limited(&dd, 100 << 20).output().unwrap();
        assert!(!too_little.status.success(), "{too_little:?}");
    }
}
