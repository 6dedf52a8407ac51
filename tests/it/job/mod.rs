//! Jobs of the library do what the programs do.

mod heads;

use std::cell::RefCell;
use std::io;
use std::path::Path;

use gguf_foundry::core::progress::{Progress, Silent};
use gguf_foundry::job::{
    Contradiction, Events, Job, JobError, JobInput, JobOutput, JobPlan, OutputFiles, OutputPath, Remark,
};
use gguf_foundry::quantize::TensorTypeRule;
use serde_json::Value as Json;

use crate::support::fixture;
use crate::support::programs::run_unsynced as run;

/// Job that is not synced.
fn job(input: JobInput, types: &str, output: &Path) -> Job {
    let output = JobOutput::at(OutputPath::File(output.to_owned()));
    Job { sync: false, ..Job::new(input, types.parse().unwrap(), output) }
}

/// Returns a document without the values that differ between two runs.
fn steady(mut document: Json) -> Json {
    for key in ["files", "free_bytes", "seconds", "mb_per_second"] {
        document.as_object_mut().unwrap().remove(key);
    }
    document
}

/// Checks that a job plans and writes what a program does with these arguments.
fn agrees(dir: &Path, input: JobInput, types: &str, program: &str, args: &[&str]) {
    let own = dir.join("own.gguf");
    let job = job(input, types, &own);
    let theirs = run(program, dir, &[args, &["--dry-run", "--json"]].concat()).ok().json();
    let plan = serde_json::to_value(job.plan(&Silent).unwrap()).unwrap();
    assert_eq!(steady(plan), steady(theirs), "{args:?}");
    assert!(!own.exists());
    let theirs = run(program, dir, &[args, &["--json"]].concat()).ok().json();
    let report = job.run(&Silent).unwrap();
    assert_eq!(report.files(), std::slice::from_ref(&own));
    assert_eq!(steady(serde_json::to_value(&report).unwrap()), steady(theirs), "{args:?}");
    assert!(fs_err::read(&own).unwrap() == fs_err::read(dir.join("theirs.gguf")).unwrap(), "{args:?}");
    fs_err::remove_file(own).unwrap();
}

#[test]
fn plan_report_and_bytes_are_those_of_the_programs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = fixture("tiny-llama");
    let path = model.to_str().unwrap();
    for types in ["f16", "q4_k_m"] {
        let args = ["hf2gguf", path, "-o", "theirs.gguf", "--type", types];
        agrees(dir, JobInput::Checkpoint(model.clone()), types, "gguf-convert", &args);
    }
    run("gguf-convert", dir, &["hf2gguf", path, "-o", "f16.gguf", "--type", "f16"]).ok();
    let args = ["f16.gguf", "theirs.gguf", "q4_k_m"];
    agrees(dir, JobInput::Gguf(dir.join("f16.gguf")), "q4_k_m", "gguf-quantize", &args);
}

#[test]
fn a_gguf_file_gets_no_types_of_a_conversion() {
    let dir = tempfile::tempdir().unwrap();
    let job = job(JobInput::Gguf(dir.path().join("a.gguf")), "native", &dir.path().join("b.gguf"));
    for error in [job.plan(&Silent).unwrap_err(), job.run(&Silent).unwrap_err()] {
        assert!(matches!(error, JobError::Options(Contradiction::NotConverted)), "{error}");
    }
}

/// Events in the order in which they came.
#[derive(Default)]
struct Told(RefCell<Vec<String>>);

impl Events for Told {
    fn progress(&self) -> &dyn Progress {
        &Silent
    }

    fn remark(&self, remark: &Remark) {
        self.0.borrow_mut().push(format!("remark: {remark}"));
    }

    fn note(&self, text: &str) {
        self.0.borrow_mut().push(format!("note: {text}"));
    }

    fn planned(&self, plan: &JobPlan) -> io::Result<()> {
        let n_tensors = match plan {
            JobPlan::Convert(plan) => plan.tensors.len(),
            JobPlan::Quantize(plan) => plan.tensors.len(),
        };
        self.0.borrow_mut().push(format!("planned: {n_tensors}"));
        Ok(())
    }
}

#[test]
fn events_come_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("a.gguf");
    let mut job = job(JobInput::Checkpoint(fixture("tiny-llama")), "q4_k_m", &output);
    job.quantize.tensor_types = vec![TensorTypeRule::parse("no_such=q8_0").unwrap()];
    job.output.files = OutputFiles::Share { share: "1/2".parse().unwrap(), resume: false };
    let told = Told::default();
    job.run(&told).unwrap();
    let told = told.0.into_inner();
    assert!(told[0].starts_with("note: part 1/2: "), "{told:?}");
    let idle = "remark: 1 option without effect: `--tensor-type no_such=q8_0` (no tensor has such a name)";
    assert_eq!(told[1], idle);
    assert_eq!((told[2].starts_with("planned: "), told.len()), (true, 3), "{told:?}");
}

/// Receiver whose output is closed.
struct Closed;

impl Events for Closed {
    fn progress(&self) -> &dyn Progress {
        &Silent
    }

    fn planned(&self, _: &JobPlan) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_plan_that_cannot_be_shown_stops_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("a.gguf");
    let job = job(JobInput::Checkpoint(fixture("tiny-llama")), "q4_0", &output);
    assert!(matches!(job.run(&Closed).unwrap_err(), JobError::Show(_)));
    assert!(!output.exists());
}
