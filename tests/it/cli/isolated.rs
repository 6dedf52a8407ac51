//! Isolation of untrusted templates: they run in a child process that ends with the program, wherever the program is
//! installed.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::hostile_corpus::material::with_keys;
use crate::support::programs::{self, Outcome};
use crate::support::{fixture, root};

/// More work than the time limit allows.
const SLOW: &str = "{% set a = 'a' * 60000000 %}{% for i in range(9999) %}{{ 'b' in a }}{% endfor %}";

fn model(dir: &Path, template: &str) -> PathBuf {
    let keys = json!({"tokenizer.chat_template": ["str", template]});
    fs_err::write(dir.join("m.gguf"), with_keys(keys.to_string().as_bytes())).unwrap();
    dir.join("m.gguf")
}

fn verify(model: &Path) -> Command {
    let mut command = programs::command("gguf-verify", root());
    command.arg(model).arg("--prompts").arg(fixture("hostile/base_chat.jsonl"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Child of a program, once it exists and has begun to work.
fn job_of(program: &Child) -> i32 {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_mins(1) {
        let tasks = fs_err::read_dir(format!("/proc/{}/task", program.id())).unwrap();
        for task in tasks {
            let children = fs_err::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            if let Some(pid) = children.split_whitespace().next() {
                let pid: i32 = pid.parse().unwrap();
                let stat = fs_err::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
                let resident = stat.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
                // The long text exists.
                if resident.is_some_and(|pages| pages > 10_000) {
                    return pid;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no child");
}

fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn signal(pid: i32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn end(program: Child) -> (Option<i32>, String) {
    let ended = Outcome::from(program.wait_with_output().unwrap());
    (ended.code, ended.text())
}

#[test]
fn an_interrupt_ends_a_rendering_and_leaves_no_child() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["-INT", "-TERM"] {
        let program = verify(&model(dir.path(), SLOW)).process_group(0).spawn().unwrap();
        let child = job_of(&program);
        let begun = Instant::now();
        signal(i32::try_from(program.id()).unwrap(), name);
        let (code, said) = end(program);
        assert_eq!(code, Some(130), "{said}");
        assert!(!is_alive(child), "child {child} is left");
        // Long before its own limit, even on a loaded machine.
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_child_that_is_killed_is_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    let program = verify(&model(dir.path(), SLOW)).spawn().unwrap();
    signal(job_of(&program), "-KILL");
    let (code, said) = end(program);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("prompt 0: messages: chat template: crashed with signal 9 (SIGKILL)"), "{said}");
}

#[test]
fn a_program_without_a_file_renders_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let model = model(dir.path(), template);
    let program = dir.path().join("a program");
    fs_err::copy(programs::path("gguf-verify"), &program).unwrap();
    let script = "exec 3<'a program'; rm 'a program'; exec /proc/self/fd/3 \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&model).arg("--prompts").arg(fixture("hostile/base_chat.jsonl"));
    let said = programs::finish(shell.current_dir(dir.path())).exits_with(4).text();
    assert!(!program.exists() && !said.contains("chat template"), "{said}");
}

/// Started by hand, as by a user.
#[test]
fn the_hidden_command_takes_its_own_arguments_only() {
    for args in [&["isolated-job", "chat"][..], &["isolated-job", "nothing", "1", "2", "3"]] {
        for program in ["gguf-verify", "gguf-convert"] {
            let (code, out, _) = programs::run(program, root(), args).parts();
            assert_eq!((code, out.len()), (2, 0), "{args:?}");
        }
    }
}

#[test]
fn a_chat_that_fails_leaves_the_others_scored() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(
        dir.path(),
        "{{ messages[0].content }}{% if messages[0].role == 'tool' %}{{ 1 // 0 }}{% endif %}",
    );
    let chat = |role: &str| json!({"messages": [{"role": role, "content": "the heather on the path"}]});
    let prompts = dir.path().join("p.jsonl");
    fs_err::write(&prompts, format!("{}\n{}\n{}\n", chat("user"), chat("tool"), chat("tool"))).unwrap();
    let mut verify = programs::command("gguf-verify", root());
    let ended =
        programs::finish(verify.arg(&model).arg("--prompts").arg(&prompts).arg("--json")).exits_with(3);
    let said = &ended.out;
    assert!(said.contains("prompt 1: messages: chat template: line 1: "), "{said}");
    assert!(said.contains("(2 of 3 prompts)"), "{said}");
    let document = ended.model();
    assert!(document["perplexity"]["value"].is_number(), "{document:#}");
    // Figures over fewer texts than were asked for are not printed as complete.
    let mut logits = programs::command("gguf-verify", root());
    let (code, out, _) =
        programs::finish(logits.arg("logits").arg(&model).arg("--prompts").arg(&prompts)).parts();
    assert_eq!((code, out.len()), (1, 0));
}
