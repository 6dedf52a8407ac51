//! Tests of pages from made-up data: one file, six, a failing one, names that contain markup.

use std::path::{Path, PathBuf};

use super::data::{PageData, TensorError};
use super::run_info::{InputFile, RunInfo};
use super::{Reports, html, markdown, tables};
use crate::cli::Session;
use crate::cli::progress::TerminalProgress;
use crate::cli::verify::details::{Details, DivergenceSpread, Worst};
use crate::cli::verify::report::ModelReport;
use crate::job::Guard;
use crate::verify::{
    Aspect, Check, Distribution, Divergence, EmbeddingDifference, EmbeddingReport, Estimate, Figure, Finding,
    HealthyVectors, LimitLine, Perplexity, Report, Spread, Thresholds,
};

const HOSTILE: &str =
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;|`*_\u{1b}[31m\u{202e}\n# x";

fn run_info() -> RunInfo {
    let input = |role, path: &str, sha256: Option<&str>| InputFile {
        role,
        path: path.to_owned(),
        bytes: sha256.map(|_| 4096),
        sha256: sha256.map(str::to_owned),
    };
    RunInfo {
        program: "gguf-verify".to_owned(),
        version: "0.0.0".to_owned(),
        command: "gguf-verify a.gguf --baseline 'b <x>'".to_owned(),
        date: "2001-02-03 04:05:06 UTC".to_owned(),
        system: "linux x86_64".to_owned(),
        simd: "avx2".to_owned(),
        threads: 2,
        inputs: vec![input("model", "a.gguf", Some("0123abcd")), input("prompts", "pipe", None)],
    }
}

fn worst(token: &str) -> Worst {
    Worst {
        prompt: 0,
        at: 7,
        kld: 0.5,
        context: "once upon".to_owned(),
        token: token.to_owned(),
        baseline_top: " a".to_owned(),
        model_top: " the".to_owned(),
        baseline_p: Some(0.25),
        model_p: None,
    }
}

/// Report of a file with figures against a baseline.
fn measured(path: &str, file_type: &str, size_bytes: u64, kld: f64) -> ModelReport {
    let mut report = Report::new(Some("llama".to_owned()), Some(4.5), Thresholds::default());
    for aspect in Aspect::ALL {
        report.judged(aspect, "a test");
    }
    report.not_judged(Aspect::Weights, "they were not compared", "a baseline with weights");
    report.limits = vec![
        LimitLine::new(Figure::Kld, kld, None, 0.01, false),
        LimitLine::new(Figure::Top1, 0.95, None, 0.9, true),
    ];
    report.perplexity =
        Some(Perplexity { value: 20.5, stderr: 0.25, tokens: 4000, ids_digest: None, total_nll: 1.0 });
    report.divergence = Some(Divergence {
        kld: Spread {
            mean: kld,
            stderr: kld / 20.0,
            quantiles: Distribution { p99: 8.0 * kld, ..Distribution::default() },
        },
        top1_agreement: 0.95,
        rms_dp: 0.01,
        delta_ln_ppl: Estimate { value: 0.01, stderr: 0.001 },
        baseline_ppl: 20.0,
        ..Divergence::default()
    });
    let values = (1..=1000).map(|at| kld * f64::from(at) / 500.0).collect();
    ModelReport {
        path: PathBuf::from(path),
        size_bytes: Some(size_bytes),
        file_type: Some(file_type.to_owned()),
        report,
        details: Some(Details {
            name: Some("Tiny".to_owned()),
            spread: DivergenceSpread::of_values(values),
            worst: vec![worst(" time")],
        }),
        inputs: Vec::new(),
        next: None,
        losses: Vec::new(),
    }
}

fn unreadable(path: &str) -> ModelReport {
    let report = Report::unreadable("cut.gguf: at 7 of 24 bytes the header ends");
    ModelReport { size_bytes: Some(7), ..ModelReport::new(PathBuf::from(path), report, Vec::new()) }
}

fn six() -> Vec<ModelReport> {
    let types = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"];
    let file = |(at, name): (usize, &&str)| {
        measured(
            &format!("m-{name}.gguf"),
            name,
            9_000_000 - 1_000_000 * at as u64,
            1e-4 * 4f64.powi(at as i32),
        )
    };
    types.iter().enumerate().map(file).collect()
}

fn page(entries: &[ModelReport]) -> PageData {
    PageData::new(entries, Some(Path::new("base.gguf")), &[], run_info())
}

/// Elements without an end tag.
const VOID: [&str; 4] = ["meta", "link", "br", "hr"];

/// Asserts that elements are closed in order, attributes are quoted, ids are unique, and marks of charts have colours.
fn check_markup(html: &str) {
    let (mut open, mut ids): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>') || open.last() == Some(&"style"), "a stray `>`: {}", &rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order, before: {}", &rest[..rest.len().min(200)]);
            continue;
        }
        let name = tag.split([' ', '/', '\n']).next().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{tag}");
        let class = tag.split_once(" class=\"").map_or("", |(_, class)| class.split('"').next().unwrap());
        if class.starts_with("f-") || class.starts_with("s-") {
            assert!(html.contains(&format!(".{class} {{")), "a mark without a colour: {tag}");
        }
        ids.extend(tag.split_once(" id=\"").map(|(_, id)| id.split('"').next().unwrap()));
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        if name == "style" {
            rest = &rest[rest.find("</style>").expect("the style ends")..];
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let n_ids = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), n_ids, "an id is there twice");
    for reference in
        html.split("aria-labelledby=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap().split(' '))
    {
        assert!(ids.contains(&reference), "`{reference}` names nothing");
    }
}

#[test]
fn one_file_is_shown_in_full() {
    let html = html::render(&page(&[measured("m.gguf", "Q4_K_M", 5_000_000, 0.004)])).unwrap();
    check_markup(&html);
    for part in [
        "0.004000",
        "20.5000",
        "0123abcd",
        "not a regular file",
        "b &lt;x&gt;",
        " time</mark>",
        "histogram-0-wide",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("<details") && !html.contains("size-kld"), "nothing to compare, nothing to fold");
}

#[test]
fn six_files_are_compared() {
    let html = html::render(&page(&six())).unwrap();
    check_markup(&html);
    assert_eq!(html.matches("<details").count(), 6);
    let charts = html.matches("<svg").count();
    assert_eq!(charts, 2 * (1 + 1 + 6), "sizes, quantiles and six histograms, wide and narrow");
    assert_eq!(html.matches(">Q5_K_M</text>").count(), 4, "a label in both charts, wide and narrow");
    assert!(!html.contains("<script"));
}

#[test]
fn healthy_values_and_weights_are_drawn_where_they_are_known() {
    let mut page = page(&six());
    let without = html::render(&page).unwrap();
    page.files[3].healthy_kld = Some(0.005);
    page.files[3].weights = vec![
        TensorError::new("token_embd.weight", true, Some(0.0), Some(1.0)),
        TensorError::new("blk.0.attn_q.weight", true, None, None),
        TensorError::new("blk.1.attn_q.weight", false, Some(0.4), Some(7.25)),
        TensorError::new("blk.1.<b>.weight", false, Some(0.1), None),
        TensorError::new("blk.x.odd", false, None, Some(f64::NAN)),
        TensorError { is_damaged: true, ..TensorError::new("output.weight", false, Some(0.1), Some(1.5)) },
    ];
    let html = html::render(&page).unwrap();
    check_markup(&html);
    assert!(html.contains("2 of 6 tensors are identical"));
    assert!(html.contains("<td class=\"l5\">7.25</td>") && html.contains("<td class=\"l5\">NaN</td>"));
    assert!(html.contains("<td class=\"l5\">1.50</td>"), "damaged, whatever its ratio");
    assert!(html.contains("&lt;b&gt;") && html.contains("blk.x.odd"));
    let lines = |html: &str| html.matches("class=\"s-good\"").count();
    assert_eq!((lines(&without), lines(&html)), (0, 2), "a line in each form of the chart");
    let tensor = TensorError::new("blk.12.ffn_up.weight", false, None, None);
    assert_eq!((tensor.layer, tensor.role.as_str()), (Some(12), "ffn_up"));
}

#[test]
fn what_is_said_of_all_files_is_said_once() {
    let mut entries = six();
    for entry in &mut entries {
        entry.report.not_judged(Aspect::Divergence, "there is none", "a baseline");
        entry.report.not_judged(Aspect::Tokenizer, "there is none", "a baseline");
        entry.report.add(Finding::unchecked(Check::Graph, "odd everywhere"));
    }
    entries[2].report.add(Finding::unchecked(Check::Graph, "odd here"));
    let page = page(&entries);
    let html = html::render(&page).unwrap();
    check_markup(&html);
    let head = html.split("id=\"files\"").next().unwrap();
    assert_eq!(head.matches("odd everywhere").count(), 1, "{head}");
    assert!(head.contains("tokenizer, divergence: <bdi>there is none; needs a baseline"), "{head}");
    assert!(head.contains("<strong><bdi>Q5_K_M</bdi></strong>: <span class=\"unchecked\">"), "{head}");
    let card = markdown::render(&page).unwrap();
    assert_eq!(card.matches("odd everywhere").count(), 1, "{card}");
    assert!(card.contains("- **all files**: unchecked weights: they were not compared"), "{card}");
}

#[test]
fn a_file_that_cannot_be_read_is_on_the_page() {
    let html = html::render(&page(&[measured("a.gguf", "Q8_0", 9, 0.001), unreadable("cut.gguf")])).unwrap();
    check_markup(&html);
    assert!(html.contains("1 of 2 files is broken") && html.contains("at 7 of 24 bytes"), "{html}");
    let reason = html.find("at 7 of 24 bytes").unwrap();
    assert!(reason < html.find("<table").unwrap(), "the reason comes first");
    let alone = html::render(&page(&[unreadable("cut.gguf")])).unwrap();
    check_markup(&alone);
}

/// Report of an encoder with a baseline. With `score_error` it is a model that scores texts.
fn encoder(path: &str, score_error: Option<f64>) -> ModelReport {
    let mut entry = measured(path, "Q8_0", 9_000_000, 0.001);
    let report = &mut entry.report;
    (report.perplexity, report.divergence) = (None, None);
    let against = Some(EmbeddingDifference {
        mean_cosine: 0.998,
        worst_cosine: 0.98765432,
        worst_prompt: 17,
        same_neighbour: score_error.is_none().then_some(0.955),
        rank_correlation: score_error.is_none().then_some(0.9876),
        score_error,
        healthy: Some(HealthyVectors { mean_cosine: 0.9991, worst_cosine: 0.98765432, score_error }),
    });
    let pooling = if score_error.is_some() { "rank" } else { "mean" };
    report.embeddings = Some(EmbeddingReport { texts: 1024, tokens: 20_000, width: 384, pooling, against });
    let line = |figure, value| LimitLine::new(figure, value, None, 0.99, false);
    report.limits = vec![match score_error {
        None => line(Figure::Cosine, 0.998),
        Some(error) => line(Figure::ScoreError, error),
    }];
    entry.details = None;
    entry
}

#[test]
fn of_encoders_vectors_stand_in_the_place_of_predictions() {
    let entries = [encoder("e.gguf", None), encoder("rank.gguf", Some(0.0123))];
    let html = html::render(&page(&entries)).unwrap();
    check_markup(&html);
    for part in [
        "0.99800000",
        "0.98765432",
        "95.50 %",
        "0.987600",
        "0.012300",
        "a fresh quantization: 0.99910000",
        "prompt 17",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("perplexity</th>") && !html.contains("<dt>perplexity</dt>"), "{html}");
    assert!(html.contains("at least 0.99000000") && html.contains("at most 0.990"), "{html}");
    let card = markdown::render(&page(&entries)).unwrap();
    let head = "| file | type | size | bits per weight | mean cosine | worst cosine | same neighbour | correlation of ranks | \
                error of the scores | verdict |";
    assert!(card.contains(head), "{card}");
    assert!(card.contains("| 0.99800000 | 0.98765432 | 95.50 % | 0.987600 | – | pass |"), "{card}");
    assert!(card.contains("| – | – | – | – | 0.012300 | pass |"), "{card}");
    // Together with a model that predicts text, every file has every column.
    let mixed = [encoder("e.gguf", None), measured("m.gguf", "Q8_0", 9, 0.001)];
    let html = html::render(&page(&mixed)).unwrap();
    check_markup(&html);
    assert!(html.contains("perplexity</th>") && html.contains("mean cosine</th>"), "{html}");
}

#[test]
fn figures_that_are_no_numbers_are_shown() {
    let mut entry = measured("nan.gguf", "Q8_0", 9, f64::NAN);
    entry.details.as_mut().unwrap().spread = DivergenceSpread::of_values(vec![f64::NAN, f64::INFINITY, 0.0]);
    let entries = [entry, measured("zero.gguf", "F32", 9, 0.0), measured("less.gguf", "F16", 0, -1e-9)];
    let html = html::render(&page(&entries)).unwrap();
    check_markup(&html);
    assert!(html.contains("NaN"), "{html}");
    markdown::render(&page(&entries)).unwrap();
}

#[test]
fn foreign_text_stays_text() {
    let mut entry = measured(&format!("dir/{}", HOSTILE.replace('/', "")), HOSTILE, 9, 0.001);
    entry.report.add(Finding::error(Check::Graph, HOSTILE).of(HOSTILE));
    entry.report.add(Finding::unchecked(Check::Tokenizer, HOSTILE));
    entry.report.add(Finding::warning(Check::Keys, HOSTILE));
    entry.report.arch = Some(HOSTILE.to_owned());
    let escaped = crate::core::text::escape(HOSTILE).into_owned();
    let details = entry.details.as_mut().unwrap();
    details.name = Some(escaped.clone());
    details.worst =
        vec![Worst { context: escaped.clone(), baseline_top: escaped.clone(), ..worst(&escaped) }];
    let long = measured(&"long".repeat(500), &"x".repeat(3000), 10, 0.002);
    let mut page = PageData::new(&[entry, long], Some(Path::new(HOSTILE)), &[], run_info());
    page.run.command = escaped.clone();
    page.run.inputs[0].path = escaped;
    let html = html::render(&page).unwrap();
    check_markup(&html);
    assert!(
        !html.contains("<script") && !html.contains("<img") && !html.contains(['\u{1b}', '\u{202e}']),
        "{html}"
    );
    assert!(html.matches("&lt;script&gt;").count() > 15, "{}", html.matches("&lt;script&gt;").count());
    let card = markdown::render(&page).unwrap();
    let (prose, command) = card.split_once("    <script>").expect("the command is code, as it is");
    let prose = prose.to_owned() + command.split_once('\n').unwrap().1;
    assert!(!prose.contains("<script") && !prose.contains("<img") && !prose.contains('\u{1b}'), "{prose}");
    // Number of cells, including any that a name would add.
    let cells = |line: &&str| line.matches('|').count();
    let table: Vec<usize> =
        prose.lines().filter(|line| line.starts_with("| file |")).map(|l| cells(&l)).collect();
    for line in prose.lines().filter(|line| line.starts_with('|') && line.contains("script")) {
        assert!(table.contains(&cells(&line)) || [4, 6].contains(&cells(&line)), "{line}");
    }
}

#[test]
fn cards_are_markdown() {
    let mut broken = unreadable("a|b`.gguf");
    broken.report.add(Finding::warning(Check::Header, "odd"));
    let card = markdown::render(&page(&[measured("m_q4.gguf", "Q4_K_M", 5_000_000, 0.004), broken])).unwrap();
    insta::assert_snapshot!(card, @r#"
    ## Tiny: verification

    **Verdict: fail.** 1 of 2 files is broken or worse than allowed. Compared with base.gguf.

    - **a&#124;b\`**: error header: cut.gguf&#58; at 7 of 24 bytes the header ends

    | file | type | size | bits per weight | perplexity | Δ ppl | mean KLD | 99 % KLD | same first choice | quality | verdict | recommendation |
    |---|---|--:|--:|--:|--:|--:|--:|--:|---|---|---|
    | m\_q4.gguf | Q4\_K\_M | 4.77 MiB | 4.50 | 20.5000 ± 0.2500 | +1.01 % | 0.004000 | 0.032000 | 95.00 % | near lossless | pass | recommended, the smallest that is very good |
    | a&#124;b\`.gguf | – | 7 B | – | – | – | – | – | – | – | fail | do not use |

    KLD by quantile of the tokens:

    | file | 10 % | 25 % | 50 % | 75 % | 90 % | 95 % | 99 % | 99.9 % | largest |
    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
    | Q4\_K\_M | 0.000807 | 0.002006 | 0.004004 | 0.006002 | 0.007201 | 0.007600 | 0.007920 | 0.007992 | 0.008000 |

    <details><summary>Q4\_K\_M: where it differs most from the baseline</summary>

    | KLD | text before | the text goes on | baseline says | file says |
    |--:|---|---|---|---|
    | 0.5000 | …once upon | ␣time | ␣a | ␣the |

    </details>

    Not checked of Q4\_K\_M: weights (they were not compared).

    Not checked of a&#124;b\`: structure, tokenizer, metadata, weights, perplexity, divergence (the file could not be read).

    How it was run (gguf-verify 0.0.0, linux x86_64, avx2, 2 threads, 2001-02-03 04:05:06 UTC):

        gguf-verify a.gguf --baseline 'b <x>'

    | part | file | SHA-256 |
    |---|---|---|
    | model | a.gguf | 0123abcd |
    | prompts | pipe | not a regular file |
    "#);
}

#[derive(clap::Parser)]
struct PageProbe {
    #[command(flatten)]
    common: crate::cli::Common,
}

#[test]
fn reports_are_named_by_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let paths = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
    let common = <PageProbe as clap::Parser>::try_parse_from(["probe"]).unwrap().common;
    let session = Session { common, progress: TerminalProgress::quiet() };
    let of = |names: &[&str]| Reports::of(&paths(names), None, &mut Guard::new(&session.progress, false));
    assert_eq!(of(&["a.html", "b.MD", "c.json"]).unwrap().targets.len(), 3);
    for bad in [&["a.txt"][..], &["html"], &["a.html", "a.html"], &["none/a.html"]] {
        assert!(of(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn other_programs_get_tables_and_test_cases() {
    let mut broken = unreadable("a,\"b\"<.gguf");
    broken.report.add(Finding::warning(Check::Header, "odd"));
    let page = page(&[measured("m_q4.gguf", "Q4_K_M", 5_000_000, 0.004), broken]);
    insta::assert_snapshot!(tables::csv(&page), @r#"
    file,type,size_bytes,bits_per_weight,perplexity,perplexity_stderr,mean_kld,mean_kld_stderr,kld_99,same_first_choice,quality,verdict
    m_q4.gguf,Q4_K_M,5000000,4.5,20.5,0.25,0.004,0.0002,0.032,0.95,near lossless,pass
    "a,""b""<.gguf",,7,,,,,,,,,fail
    "#);
    insta::assert_snapshot!(tables::junit(&page), @r#"
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="gguf-verify">
    <testsuite name="Tiny" tests="2" failures="1" errors="0" skipped="0">
    <testcase classname="gguf-verify" name="m_q4.gguf"></testcase>
    <testcase classname="gguf-verify" name="a,&quot;b&quot;&lt;.gguf"><failure message="Not intact: 1 error in the structure. Quality: not measured.">header: cut.gguf: at 7 of 24 bytes the header ends</failure></testcase>
    </testsuite>
    </testsuites>
    "#);
}

#[test]
fn what_could_not_be_judged_is_in_every_report() {
    let mut page = page(&six()[..1]);
    page.add_failed(&[("dir/x.gguf".into(), anyhow::anyhow!("dir/x.gguf: this is a tower"))]);
    assert_ne!(page.verdict, "pass");
    assert!(page.summary.ends_with(" 1 other file could not be judged."), "{}", page.summary);
    assert!(tables::csv(&page).ends_with("x.gguf,,,,,,,,,,,error\n"));
    let cases = tables::junit(&page);
    assert!(cases.contains("errors=\"1\"") && cases.contains("<error message=\"It could not be judged.\">"));
    for text in [html::render(&page).unwrap(), markdown::render(&page).unwrap()] {
        assert!(text.contains("x.gguf") && text.contains("could not be judged"));
    }
}
