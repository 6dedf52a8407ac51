//! Helpers of the test modules: those of all crates, and runs of programs.

pub mod programs;

pub use gguf_testkit::*;

/// Runs a program to its end and returns its highest `RssAnon` in KiB: memory that is not a mapped file.
#[cfg(target_os = "linux")]
pub fn peak_memory_kib(command: &mut std::process::Command) -> u64 {
    let mut child = command.stdin(std::process::Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        // The process may end during this read.
        if let Ok(text) = fs_err::read_to_string(format!("/proc/{}/status", child.id())) {
            let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
            peak = peak.max(kib.unwrap_or(0));
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    assert!(status.success());
    peak
}

/// Waits until a process has mapped a file and installed its signal handler.
#[cfg(target_os = "linux")]
pub fn wait_until_it_reads(child: &mut std::process::Child, name: &str) {
    let id = child.id();
    let proc = |file: &str| fs_err::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
    loop {
        let caught = proc("status");
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap_or(0);
        // SIGTERM.
        if (caught >> 14) & 1 == 1 && proc("maps").contains(name) {
            return;
        }
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?} before the file was mapped");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
