//! Draft heads of a ladder.

use gguf_foundry::arch::DraftHeads;
use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::job::ladder::{Ladder, Rung};
use gguf_foundry::job::{Job, JobInput, JobOutput, OutputPath};

#[path = "../../../crates/gguf-conversion/tests/arch/fixture.rs"]
mod fixture;

use crate::support::tiers::{Tier, two_tiers};
use fixture::{CardFixture, stripped};

two_tiers!(a_ladder_has_the_heads_in_a_file_of_their_own);
fn a_ladder_has_the_heads_in_a_file_of_their_own(tier: Tier) {
    let mut n_cases = 0;
    for (whole, without) in tier.some(6, stripped()) {
        let ladder = |case: &CardFixture, name: &str| {
            let dir = tempfile::tempdir().unwrap();
            case.write(dir.path());
            let convert = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
            let input = JobInput::Checkpoint(dir.path().to_owned());
            let ladder = Ladder::new(input.clone(), Rung::parse_list("f16").unwrap(), dir.path().join(name));
            let report = Ladder { convert: convert.clone(), sync: false, ..ladder }.run(&Silent);
            let report = report.unwrap_or_else(|error| panic!("{}: {error}", case.at));
            let heads = report.draft_heads?;
            // The file is that of `--mtp --type q8_0`.
            let output = JobOutput::at(OutputPath::File(dir.path().join("alone.gguf")));
            let job = Job::new(input, "q8_0".parse().unwrap(), output);
            let convert = ConvertOptions { heads: DraftHeads::Alone, ..convert };
            Job { convert, sync: false, ..job }.run(&Silent).unwrap();
            let [own, alone] = [&heads.plan.paths[0], &dir.path().join("alone.gguf")]
                .map(|path| fs_err::read(path).unwrap());
            assert!(own == alone, "{}", case.at);
            let file = heads.plan.paths[0].file_name().unwrap().to_string_lossy().into_owned();
            assert!(file.starts_with("mtp-") && file.ends_with("-Q8_0.gguf"), "{file}");
            Some(())
        };
        n_cases += usize::from(ladder(&whole, "with").is_some());
        assert!(ladder(&without, "without").is_none(), "{}: heads that are not stored", whole.at);
    }
    assert!(n_cases > tier.of(0, 3), "{n_cases}");
}
