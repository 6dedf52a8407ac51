//! Tasks: every answer compared with llama-perplexity's on the bundled model, and invalid files.

use gguf_foundry::core::GgmlType;
use serde_json::Value;

use super::gguf_verify;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture, report_cases};
use crate::testkit::tiny::{self, Tiny};

const FILES: [(&str, &str); 3] = [
    ("hellaswag", "hellaswag.txt"),
    ("winogrande", "winogrande.csv"),
    ("multiple-choice", "multiple-choice.bin"),
];

fn path(name: &str) -> String {
    fixture(&format!("tasks/{name}")).to_str().unwrap().to_owned()
}

two_tiers!(every_task_is_answered_as_llama_perplexity_answers_it);

/// Every day ten of the tasks.
fn every_task_is_answered_as_llama_perplexity_answers_it(tier: Tier) {
    let dir = tiny::directory();
    let peer = files::json(path("peer.json"));
    let mut n_cases = 0;
    for (kind, file) in FILES {
        for n_tasks in tier.some(2, ["10", "0"]) {
            let (option, file) = (format!("--{kind}"), path(file));
            let mut args = vec!["base.gguf", &option, &file, "--json"];
            if n_tasks != "0" {
                args.extend(["--tasks", n_tasks]);
            }
            let report = gguf_verify(&args, dir.path()).model();
            let tasks = &report["tasks"][0];
            assert_eq!((tasks["kind"].as_str(), tasks["tasks_in_file"].as_u64()), (Some(kind), Some(24)));
            let peer = &peer[format!("{kind}/{n_tasks}")];
            let right: Vec<bool> =
                peer["right"].as_array().unwrap().iter().map(|x| x.as_bool().unwrap()).collect();
            let outcomes = tasks["outcomes"].as_array().unwrap();
            let found: Vec<bool> = outcomes.iter().map(|o| o["is_right"].as_bool().unwrap()).collect();
            assert_eq!(found, right, "{kind} {n_tasks}");
            assert_eq!(found.len(), if n_tasks == "0" { 24 } else { 10 });
            for (outcome, scores) in outcomes.iter().zip(peer["scores"].as_array().unwrap()) {
                let numbers = |value: &Value| -> Vec<f64> {
                    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
                };
                for (a, b) in numbers(&outcome["scores"]).iter().zip(numbers(scores)) {
                    assert!((a - b).abs() < 2e-5, "{kind}: {outcome} {scores}");
                }
            }
            n_cases += found.len();
        }
    }
    report_cases("verify: tasks", n_cases);
}

deep_test!(several_models_and_kinds_end_in_a_table);

fn several_models_and_kinds_end_in_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4_0.gguf");
    let [(_, hellaswag), (_, winogrande), _] = FILES.map(|(kind, file)| (kind, path(file)));
    let tasks = ["--hellaswag", &hellaswag, "--winogrande", &winogrande, "--tasks", "5"];
    let (_, out, err) = gguf_verify(&[&["base.gguf", "q4_0.gguf"], &tasks[..]].concat(), dir.path()).parts();
    let heads = out.lines().find(|line| line.starts_with("file")).unwrap_or_else(|| panic!("{out}{err}"));
    assert!(heads.contains("hellaswag") && heads.contains("winogrande"), "{out}");
    let row = out.lines().find(|line| line.starts_with("q4_0.gguf")).unwrap();
    assert_eq!(row.matches('%').count(), 2, "{out}");
    let (code, out, _) = gguf_verify(&[&["base.gguf"], &tasks[..]].concat(), dir.path()).parts();
    assert_eq!(code, 4, "answers alone are no verdict: {out}");
    assert!(out.contains("% right of 5 of 24 tasks (95 %: "), "{out}");
    assert!(out.contains("guessing: 25.0000") && out.contains("guessing: 50.0000"), "{out}");
}

/// File in the binary format: questions, and answers with their labels.
pub fn binary(tasks: &[(&str, &[(&str, i32)])]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let body = |(question, answers): &(&str, &[(&str, i32)])| {
        let texts: Vec<u8> = answers.iter().flat_map(|(text, _)| string(text)).collect();
        let labels: Vec<u8> = answers.iter().flat_map(|(_, label)| label.to_le_bytes()).collect();
        let n = (answers.len() as u32).to_le_bytes();
        [&string(question)[..], &n, &texts, &labels, &0u32.to_le_bytes()].concat()
    };
    let bodies: Vec<Vec<u8>> = tasks.iter().map(body).collect();
    let mut out = (tasks.len() as u32).to_le_bytes().to_vec();
    let mut offset = 4 + 4 * tasks.len();
    for body in &bodies {
        out.extend((offset as u32).to_le_bytes());
        offset += body.len();
    }
    out.extend(bodies.concat());
    out
}

#[test]
fn tasks_that_cannot_be_scored_are_not_counted() {
    let dir = tiny::directory_of_a_layer();
    let tasks = binary(&[("Sound?", &[(" yes", 1), (" no", 0)]), ("Which?", &[(" a", 0), (" b", 2)])]);
    fs_err::write(dir.path().join("tasks"), tasks).unwrap();
    let args = ["base.gguf", "--multiple-choice", "tasks", "--json"];
    let report = gguf_verify(&args, dir.path()).exits_with(4).model();
    let tasks = &report["tasks"][0];
    assert_eq!((&tasks["tasks"], &tasks["tasks_in_file"]), (&1.into(), &2.into()), "{report}");
    assert_eq!(tasks["left_out"][0]["task"], 1);
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|f| f["check"] == "tasks").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(found["severity"], "warning");
    let message = found["message"].as_str().unwrap();
    assert!(
        message.contains("1 of 2 tasks cannot be scored") && message.contains("task 1 (`Which?`)"),
        "{message}"
    );
}
