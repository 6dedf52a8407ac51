//! Work of an interrupted run: it is resumed with the same bytes, refused for other runs, and repaired if damaged.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_calibration::{CalibrateError, Fidelity, FidelityOptions, Solver, WorkError, WorkFolder, solve};
use gguf_core::progress::{Progress, Silent};
use gguf_core::{Hint, TensorSource};
use gguf_engine::EngineOptions;
use gguf_quantization::{FileType, Input, QuantizeOptions, SolvedRows, TensorTypeRule};

use super::text;
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Progress that cancels after a number of checks, and records warnings.
struct Limited {
    n_left: AtomicUsize,
    warnings: Mutex<Vec<String>>,
}

impl Limited {
    fn new(n: usize) -> Self {
        Self { n_left: AtomicUsize::new(n), warnings: Mutex::default() }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap().clone()
    }
}

impl Progress for Limited {
    fn warn(&self, message: &str) {
        self.warnings.lock().unwrap().push(message.to_owned());
    }

    fn is_cancelled(&self) -> bool {
        self.n_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err()
    }
}

/// Model and solver, with the type of the down projections.
struct Case {
    model: TinyModel,
    solver: Solver,
    down: &'static str,
}

impl Case {
    fn new(model: TinyModel, solver: Solver) -> Self {
        Self { model, solver, down: "q4_1" }
    }

    fn run(&self, work: Option<&WorkFolder>, progress: &dyn Progress) -> Result<Fidelity, CalibrateError> {
        let rule = TensorTypeRule::parse(&format!("ffn_down={}", self.down)).unwrap();
        let quantize =
            QuantizeOptions { pure: true, tensor_types: vec![rule], ..QuantizeOptions::new(FileType::Q4_0) };
        let dir = tempfile::tempdir().unwrap();
        let options = FidelityOptions {
            solver: self.solver,
            engine: EngineOptions { n_threads: 2, ..EngineOptions::default() },
            quantize: &quantize,
            dir: dir.path(),
            work,
        };
        let input = Input::new(&self.model.tensors, &self.model.metadata);
        solve(&self.model.model(), &input, &text(&self.model.model()), &options, progress)
    }

    /// Runs in a folder, whose lock is released afterwards.
    fn run_in(&self, path: &Path, progress: &dyn Progress) -> Result<Fidelity, CalibrateError> {
        let work = WorkFolder::open(path, false)?;
        self.run(Some(&work), progress)
    }

    /// Everything that a result has: blocks, figures, keys.
    fn result(&self, found: &Fidelity) -> String {
        let mut text = format!("{:?} {:?} {:?} {:?}", found.plain, found.trials, found.left, found.keys);
        let Some(blocks) = &found.blocks else { return text };
        for meta in self.model.tensors.tensors().iter().filter(|meta| meta.shape.rank() > 1) {
            let (dims, n_rows) = (meta.shape.dims(), meta.shape.n_rows());
            let per_matrix = dims[dims.len() - 2];
            let down = meta.name.contains("ffn_down") && self.down == "q4_1";
            let row_bytes = usize::try_from(meta.shape.n_cols()).unwrap() / 32 * if down { 20 } else { 18 };
            for matrix in 0..n_rows / per_matrix {
                let mut bytes = vec![0; row_bytes * usize::try_from(per_matrix).unwrap()];
                if blocks.has(&meta.name, matrix) {
                    blocks.read(&meta.name, matrix * per_matrix, &mut bytes).unwrap();
                    let _ = write!(text, "\n{} {matrix} {bytes:?}", meta.name);
                }
            }
        }
        text
    }
}

/// File name, and the change of its bytes.
type Damage<'a> = (&'a str, &'a dyn Fn(Vec<u8>) -> Vec<u8>);

/// Number of journal lines about solved matrices: all, and distinct ones.
fn solved(path: &Path) -> (usize, usize) {
    let text = fs_err::read_to_string(path.join("journal")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("\"solved\"")).collect();
    (lines.len(), lines.iter().collect::<BTreeSet<_>>().len())
}

two_tiers!(an_interrupted_run_goes_on_to_the_same_bytes);
/// Interrupted repeatedly, each time a little later.
fn an_interrupted_run_goes_on_to_the_same_bytes(tier: Tier) {
    let cases = [
        ("dense", TinyModel::dense(), Solver::Sequential),
        ("experts", TinyModel::experts(4), Solver::Sequential),
        ("cycled", TinyModel::cycled(), Solver::Sequential),
        ("mamba", TinyModel::recurrent(), Solver::Sequential),
    ];
    for (name, model, solver) in tier.some(4, cases) {
        let case = Case::new(model, solver);
        let whole = case.run(None, &Silent).unwrap();
        let expected = case.result(&whole);
        // If solving does not help, both attempts are resumed.
        let is_used = whole.blocks.is_some();
        assert!(is_used || whole.trials.len() == 2, "{name}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("work");
        let (mut n_asked, mut n_interrupts, mut n_before) = (16usize, 0, 0);
        let found = loop {
            let progress = Limited::new(n_asked);
            n_asked = n_asked * 5 / 4;
            match case.run_in(&path, &progress) {
                Ok(found) => break found,
                Err(error) => {
                    assert!(error.to_string().ends_with("interrupted"), "{name}: {error}");
                    n_interrupts += 1;
                }
            }
            let (n_lines, n_solved) = solved(&path);
            assert!(n_lines == n_solved && n_solved >= n_before, "{name}: nothing is solved twice");
            n_before = n_solved;
        };
        let is_resumed = found.n_resumed > 0 || !is_used;
        assert!(n_interrupts > 3 && is_resumed, "{name}: {n_interrupts} {}", found.n_resumed);
        assert!(case.result(&found) == expected, "{name}: other bytes after {n_interrupts} interrupts");
        // Nothing is left to do, which is reported, except for attempts that were given up.
        let before = solved(&path);
        let progress = Limited::new(usize::MAX);
        let again = case.run_in(&path, &progress).unwrap();
        assert!(case.result(&again) == expected, "{name}");
        assert_eq!(solved(&path), before, "{name}");
        if whole.trials.len() == 1 {
            assert_eq!(again.n_resumed, before.1, "{name}");
            let warnings = progress.warnings();
            assert!(warnings[0].starts_with(&format!("resuming: {} of ", before.1)), "{warnings:?}");
        }
    }
}

two_tiers!(damaged_work_is_solved_again);
fn damaged_work_is_solved_again(tier: Tier) {
    for model in tier.some(2, [TinyModel::dense(), TinyModel::experts(4)]) {
        let case = Case::new(model, Solver::Sequential);
        let expected = case.result(&case.run(None, &Silent).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("work");
        case.run_in(&path, &Silent).unwrap();
        let n = solved(&path).0;
        let damage: [Damage<'_>; 6] = [
            ("blocks-0", &|mut bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                bytes
            }),
            ("blocks-0", &|bytes| bytes[..bytes.len() / 3].to_vec()),
            ("journal", &|bytes| bytes[..bytes.len() - 7].to_vec()),
            ("journal", &|bytes| bytes[..bytes.len() / 2].to_vec()),
            ("importance.gguf", &|bytes| bytes[..bytes.len() - 1].to_vec()),
            ("importance.gguf", &|mut bytes| {
                *bytes.last_mut().unwrap() ^= 1;
                bytes
            }),
        ];
        for (name, change) in damage {
            let file = path.join(name);
            fs_err::write(&file, change(fs_err::read(&file).unwrap())).unwrap();
            let progress = Limited::new(usize::MAX);
            let found = case.run_in(&path, &progress).unwrap();
            assert!(case.result(&found) == expected, "{name}");
            let is_less = found.n_resumed < n;
            let is_blocks = name == "blocks-0";
            assert!(is_less || !is_blocks, "{name}: {} of {n}", found.n_resumed);
            let warning = &progress.warnings()[0];
            assert_eq!(is_blocks, warning.contains("are damaged, they are made again"), "{name}: {warning}");
        }
    }
}

#[test]
fn work_of_another_run_is_refused_with_what_differs() {
    let case = Case::new(TinyModel::dense(), Solver::Sequential);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("work");
    case.run_in(&path, &Silent).unwrap();
    let mut other = TinyModel::dense();
    other.tensors.edit_f32s("blk.0.attn_q.weight", |values| values[0] += 1.0);
    let mut words = TinyModel::dense();
    words.metadata.set("tokenizer.ggml.model", "gpt2");
    for (what, other) in [
        ("solver", Case::new(TinyModel::dense(), Solver::Reference)),
        ("types of the tensors", Case { down: "q5_0", ..Case::new(TinyModel::dense(), Solver::Sequential) }),
        ("model", Case::new(other, Solver::Sequential)),
    ] {
        let error = other.run_in(&path, &Silent).unwrap_err();
        let CalibrateError::Work(WorkError::OtherRun { what: found, .. }) = &error else { panic!("{error}") };
        assert_eq!(found, what);
        assert!(error.to_string().contains(&format!("the work of another run: {what} was ")), "{error}");
        assert!(error.hints()[0].contains("name another folder, or remove this one"));
    }
    // The work is unchanged.
    assert!(case.run_in(&path, &Silent).unwrap().n_resumed > 0);
}

#[test]
fn a_folder_is_of_one_run_and_goes_when_it_is_done() {
    let case = Case::new(TinyModel::dense(), Solver::Sequential);
    let dir = tempfile::tempdir().unwrap();
    let (made, empty) = (dir.path().join("a/b"), dir.path().join("empty"));
    fs_err::create_dir(&empty).unwrap();
    for path in [&made, &empty] {
        let work = WorkFolder::open(path, true).unwrap();
        let error = WorkFolder::open(path, true).unwrap_err();
        assert!(matches!(error, WorkError::Busy { .. }), "{error}");
        // Nothing was begun, so nothing is left.
        drop(work);
        assert!(path.exists() == (path == &empty));
        let work = WorkFolder::open(path, true).unwrap();
        case.run(Some(&work), &Silent).unwrap();
        drop(work);
        assert!(path.join("work.json").is_file());
        WorkFolder::open(path, true).unwrap().clear().unwrap();
        assert!(path.exists() == (path == &empty));
    }
    assert_eq!(fs_err::read_dir(&empty).unwrap().count(), 0);
    let file = dir.path().join("file");
    fs_err::write(&file, "x").unwrap();
    let error = WorkFolder::open(&file, true).unwrap_err().to_string();
    assert!(error.contains("no folder"), "{error}");
    let error = WorkFolder::open(dir.path(), true).unwrap_err().to_string();
    assert!(error.contains("is no work of a run; expected a new or empty folder"), "{error}");
    for (json, expected) in [
        ("{", "work.json"),
        ("{}", "`format` is not `gguf-foundry work`"),
        (r#"{"format":"gguf-foundry work","version":2}"#, "format version 2; expected 1"),
        (r#"{"format":"gguf-foundry work","version":1}"#, "missing field"),
    ] {
        fs_err::write(empty.join("work.json"), json).unwrap();
        let error = WorkFolder::open(&empty, true).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs_err::remove_file(empty.join("work.json")).unwrap();
    fs_err::write(empty.join("journal"), "").unwrap();
    let error = WorkFolder::open(&empty, true).unwrap_err().to_string();
    assert!(error.contains("without its `work.json`"), "{error}");
    assert_eq!(fs_err::read_dir(&empty).unwrap().count(), 1);
}
