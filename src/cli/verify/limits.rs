//! Options that set limits: one for each figure that may have one.

use clap::{Arg, ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use crate::verify::{Figure, LimitRange, Quality, Subject, Thresholds};

const MIN_QUALITY: &str = "min-quality";

/// Limits of predictions.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitArgs(Thresholds);

/// Limits of the other figures: vectors of texts, predictions of masked tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherLimitArgs(Thresholds);

impl LimitArgs {
    pub(super) fn thresholds(&self) -> Thresholds {
        self.0
    }
}

impl OtherLimitArgs {
    pub(super) fn thresholds(&self) -> Thresholds {
        self.0
    }
}

/// Returns the options of the limits that are set, in the order of the help text.
pub(super) fn given(limits: &Thresholds) -> Vec<&'static str> {
    let options = |subject| {
        let figures = Figure::of_subject(subject).filter(|&figure| limits.of(figure).is_some());
        figures.map(|figure| figure.row().option)
    };
    let quality = limits.min_quality.map(|_| MIN_QUALITY);
    let predictions = options(Subject::Predictions).chain(quality);
    let of_texts = options(Subject::Vectors).chain(options(Subject::Scores));
    predictions.chain(of_texts).chain(options(Subject::Masks)).collect()
}

/// Returns the first limit that compares with a baseline, as an option (`--max-kld`).
pub(super) fn against_baseline(limits: &Thresholds) -> Option<String> {
    let needs_baseline = |option: &&str| {
        let row = Figure::ALL.into_iter().map(Figure::row).find(|row| row.option == *option);
        row.is_none_or(|row| row.needs_baseline)
    };
    given(limits).into_iter().find(needs_baseline).map(|option| format!("--{option}"))
}

fn option(figure: Figure) -> Arg {
    let row = figure.row();
    let arg = Arg::new(row.option).long(row.option).value_name(row.placeholder).help(row.help);
    match row.range {
        LimitRange::Amount => arg.value_parser(crate::cli::amount),
        LimitRange::Share => arg.value_parser(crate::cli::share),
        LimitRange::Finite => arg.value_parser(crate::cli::finite),
    }
}

fn read(matches: &ArgMatches, figures: impl Iterator<Item = Figure>) -> Thresholds {
    figures.fold(Thresholds::default(), |limits, figure| {
        limits.with(figure, matches.get_one::<f64>(figure.row().option).copied())
    })
}

fn others() -> impl Iterator<Item = Figure> {
    [Subject::Vectors, Subject::Scores, Subject::Masks].into_iter().flat_map(Figure::of_subject)
}

fn group(id: &'static str, options: impl Iterator<Item = &'static str>) -> ArgGroup {
    ArgGroup::new(id).args(options).multiple(true)
}

impl Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        let quality = Arg::new(MIN_QUALITY).long(MIN_QUALITY).value_name("WORD").value_parser(clap::value_parser!(Quality)).help(
            "Lowest quality that passes: near-lossless (mean KLD up to 0.005, same first choice from 95 %), very-good (0.02, 90 %), \
             good (0.06, 85 %), fair (0.2, 75 %)",
        );
        let figures = || Figure::of_subject(Subject::Predictions);
        let options = figures().map(|figure| figure.row().option).chain([MIN_QUALITY]);
        command.args(figures().map(option)).arg(quality).group(group("limits", options))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut limits = read(matches, Figure::of_subject(Subject::Predictions));
        limits.min_quality = matches.get_one::<Quality>(MIN_QUALITY).copied();
        Ok(Self(limits))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for OtherLimitArgs {
    fn augment_args(command: Command) -> Command {
        let options = others().map(|figure| figure.row().option);
        command.args(others().map(option)).group(group("other-limits", options))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OtherLimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(read(matches, others())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
