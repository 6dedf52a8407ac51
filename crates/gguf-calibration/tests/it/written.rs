//! Text that models write themselves.

use gguf_arch::GraphFeatures;
use gguf_calibration::{CalibrateError, CalibrationText, SelfText, TextOptions, WrittenText};
use gguf_core::Hint;
use gguf_core::progress::{CancelFlag, Silent};
use gguf_engine::{EngineError, EngineOptions};
use gguf_verification::{ChatRenderer, ChatTemplate, Model, Window};

use super::sources;
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use crate::testkit::tiny::Tiny;
use gguf_testkit::tiers::{Tier, two_tiers};

fn engine(n_threads: usize) -> EngineOptions {
    EngineOptions { n_threads, ..EngineOptions::default() }
}

fn write(model: &Model<'_>, own: SelfText) -> WrittenText {
    own.write(model, engine(2), &Silent).unwrap()
}

fn tokens(windows: &[Window]) -> Vec<&[u32]> {
    windows.iter().map(|window| &window.chunk.tokens[..]).collect()
}

/// Runs a task with the first layers of the bundled model and a chat template.
fn with_tiny<R>(n_layers: u32, template: &dyn ChatRenderer, task: impl FnOnce(&Model<'_>) -> R) -> R {
    let tiny = Tiny::new().with_layers(n_layers);
    let features = GraphFeatures::of("llama").unwrap();
    task(&Model { template, ..crate::testkit::judged::model(&tiny, &features) })
}

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::new(text, Vec::new()).unwrap()
}

/// The first of the two line feeds is removed by the template engine after the block.
const CHAT: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'user' %}\n\n{% endif %}{% endfor %}";

#[test]
fn a_third_each_begins_as_an_answer_as_a_text_and_with_any_token() {
    with_tiny(4, &template(CHAT), |model| {
        let chat = [&[0][..], &model.encoder.unwrap().encode("user: \nassistant: ", true).unwrap()].concat();
        let own = SelfText { n_tokens: 760, n_ctx: 64, ..SelfText::default() };
        let WrittenText { windows, notes } = write(model, own);
        assert_eq!(notes, [""; 0]);
        let n_tokens: usize = tokens(&windows).iter().map(|tokens| tokens.len()).sum();
        assert!((760..=760 + 12).contains(&n_tokens), "{n_tokens}");
        assert!(windows.len() >= 12, "{}", windows.len());
        for (at, window) in windows.iter().enumerate() {
            let (tokens, rows) = (&window.chunk.tokens, &window.chunk.rows);
            let n_given = [chat.len(), 1, 2][at % 3];
            assert_eq!((window.prompt, window.start, rows.clone()), (at, 0, n_given - 1..tokens.len() - 1));
            assert_eq!((&window.scored, &window.targets[..]), (rows, &tokens[n_given..]));
            assert!(tokens.len() > n_given && tokens.len() <= 64);
            assert!(
                tokens[n_given..tokens.len() - 1].iter().all(|token| *token != 1),
                "{at} goes on behind its end"
            );
            match at % 3 {
                0 => assert_eq!(tokens[..n_given], chat),
                1 => assert_eq!(tokens[0], 0),
                // Never one of the two tokens that are not text.
                _ => assert!(tokens[0] == 0 && tokens[1] > 1),
            }
        }
        // The model's text is more like its training text than random tokens are.
        let text = model.encoder.unwrap().decode(&windows[1].chunk.tokens);
        assert!(
            text.iter().filter(|byte| byte.is_ascii_alphabetic() || **byte == b' ').count() * 10
                > text.len() * 7
        );
    });
}

two_tiers!(text_depends_on_the_seed_and_on_neither_threads_nor_memory);
fn text_depends_on_the_seed_and_on_neither_threads_nor_memory(tier: Tier) {
    with_tiny(tier.of(1, 4), &template(CHAT), |model| {
        let own = SelfText { n_tokens: 300, n_ctx: 48, ..SelfText::default() };
        let written = write(model, own);
        for n_threads in [1, 7] {
            let options = EngineOptions { memory_bytes: 200 << 20, ..engine(n_threads) };
            assert_eq!(own.write(model, options, &Silent).unwrap(), written, "{n_threads} threads");
        }
        let other = write(model, SelfText { seed: 1, ..own });
        assert_ne!(tokens(&other.windows), tokens(&written.windows));
        let cold = write(model, SelfText { temperature: 0.05, ..own });
        let warm = write(model, SelfText { temperature: 2.0, ..own });
        let variety = |text: &WrittenText| {
            let all: std::collections::BTreeSet<u32> =
                text.windows.iter().flat_map(|window| window.targets.iter().copied()).collect();
            all.len()
        };
        assert!(variety(&cold) < variety(&written) && variety(&written) < variety(&warm));
    });
}

#[test]
fn what_a_model_has_no_template_or_room_for_is_said() {
    let own = SelfText { n_tokens: 100, n_ctx: 40, ..SelfText::default() };
    // Without a template there are no notes; two thirds begin as texts.
    with_tiny(1, &gguf_verification::NoTemplate, |model| {
        let WrittenText { windows, notes } = write(model, own);
        assert_eq!(notes, [""; 0]);
        assert!(
            windows.iter().filter(|window| window.prompt % 3 == 0).all(|window| window.scored.start == 0)
        );
    });
    for (text, expected) in [
        (
            "{{ raise_exception('no empty turns') }}",
            "no sequence begins as a chat: chat template refuses the chat: no empty turns",
        ),
        (
            "{{ messages[0].content }}",
            "no sequence begins as a chat: the template leaves the model's turn out",
        ),
        (
            "{% for i in range(30) %}. {% endfor %}{{ messages[1].content }}",
            "tokens, of 20 at most: no sequence begins with it",
        ),
    ] {
        with_tiny(1, &template(text), |model| {
            let notes = write(model, own).notes;
            assert!(notes.len() == 1 && notes[0].ends_with(expected), "{notes:?}");
        });
    }
}

#[test]
fn tokens_come_as_often_as_the_model_says() {
    // After a norm with zero weights all logits are zero: 64 equally likely tokens.
    let mut model = TinyModel::dense();
    model.tensors.edit_f32s("output_norm.weight", |values| values.fill(0.0));
    let own = SelfText { n_tokens: 6400, n_ctx: 100, ..SelfText::default() };
    let WrittenText { windows, .. } = write(&model.model(), own);
    let mut counts = [0u32; 64];
    windows.iter().flat_map(|window| &window.targets).for_each(|&token| counts[token as usize] += 1);
    let n: u32 = counts.iter().sum();
    let expected = f64::from(n) / 64.0;
    let chi: f64 = counts.iter().map(|&found| (f64::from(found) - expected).powi(2) / expected).sum();
    // 63 degrees of freedom: 63 with a standard deviation of 11.
    assert!(n > 6000 && (30.0..100.0).contains(&chi), "{n} {chi}");
}

#[test]
fn models_that_cannot_go_on_are_refused_with_the_way_out() {
    let mut model = TinyModel::dense();
    model.features =
        GraphFeatures::from_toml(&"kind = 'diffusion'\nattention.mask = 'full'".parse().unwrap()).unwrap();
    let error = SelfText::default().write(&model.model(), engine(1), &Silent).unwrap_err();
    assert!(matches!(&error, CalibrateError::Engine(EngineError::NotContinued { .. })), "{error}");
    assert_eq!(error.hints(), ["no text of its own can be had: give a text"]);
    let model = TinyModel::dense();
    let small = EngineOptions { memory_bytes: 1 << 10, ..engine(1) };
    let error = SelfText::default().write(&model.model(), small, &Silent).unwrap_err();
    assert!(matches!(error, CalibrateError::SelfMemory { needed_bytes, .. } if needed_bytes > 1 << 20));
    let stopped = CancelFlag::default();
    stopped.cancel();
    let error = SelfText::default().write(&model.model(), engine(1), &stopped).unwrap_err();
    assert!(matches!(error, CalibrateError::Engine(EngineError::Cancelled)), "{error}");
}

#[test]
fn self_written_text_is_a_kind_beside_others_and_alone() {
    let model = TinyModel::recurrent();
    let options = TextOptions { n_ctx: 16, n_tokens: 3200, holds_out: true };
    let with = |sources: &[_]| {
        CalibrationText::with_self(&model.model(), sources, &options, 7, engine(2), None, &Silent).unwrap()
    };
    let shares = |text: &CalibrationText| {
        let share = |kind: &gguf_calibration::TextKind| {
            // The last step may add a token to each sequence, and windows of other texts are whole.
            let round = |n: usize| (n + 50) / 100 * 100;
            (kind.name.clone(), round(kind.n_tokens()), round(kind.n_held_out_tokens()))
        };
        text.kinds.iter().map(share).collect::<Vec<_>>()
    };
    let kind = |name: &str, n, check| (name.to_owned(), n, check);
    let text = with(&sources());
    assert_eq!(shares(&text), [kind("first", 800, 100), kind("second", 800, 100), kind("self", 1600, 200)]);
    let alone = with(&[]);
    assert_eq!(shares(&alone), [kind("self", 3200, 500)]);
    // No held-out text was used for calibration.
    let own = &alone.kinds[0];
    assert!(tokens(&own.held_out).iter().all(|check| !tokens(&own.windows).contains(check)));
    assert!(own.windows.iter().chain(&own.held_out).all(|window| window.chunk.tokens.len() <= 16));
}
