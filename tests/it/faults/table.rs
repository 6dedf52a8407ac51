//! Figures of the tries.

use std::fmt;

use super::calls::Fault;
use super::run::Tried;

#[derive(Default)]
struct Row {
    name: String,
    /// Points tried, points reached, flaws; by fault.
    counts: [[usize; 3]; Fault::ALL.len()],
}

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
    flaws: Vec<String>,
}

impl Table {
    pub fn add(&mut self, name: &str, tried: Vec<(Fault, Tried)>) {
        let mut row = Row { name: name.to_owned(), ..Row::default() };
        for (fault, tried) in tried {
            let counts = &mut row.counts[fault as usize];
            counts[0] += 1;
            counts[1] += usize::from(tried.is_reached);
            counts[2] += usize::from(tried.flaw.is_some());
            self.flaws.extend(tried.flaw);
        }
        self.rows.push(row);
    }

    pub fn n_reached(&self, fault: Fault) -> usize {
        self.rows.iter().map(|row| row.counts[fault as usize][1]).sum()
    }

    pub fn flaws(&self) -> &[String] {
        &self.flaws
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = Fault::ALL.map(|fault| format!("{} | flaws", fault.name()));
        writeln!(f, "| command | {} |", faults.join(" | "))?;
        writeln!(f, "| --- {}|", "| ---: | ---: ".repeat(faults.len()))?;
        let mut sums = [[0; 3]; Fault::ALL.len()];
        for row in &self.rows {
            let cells = row.counts.map(|[_, reached, flaws]| format!("{reached} | {flaws}"));
            writeln!(f, "| {} | {} |", row.name, cells.join(" | "))?;
            for (sum, counts) in sums.iter_mut().zip(row.counts) {
                (0..3).for_each(|at| sum[at] += counts[at]);
            }
        }
        let cells = sums.map(|[_, reached, flaws]| format!("{reached} | {flaws}"));
        writeln!(f, "| all | {} |", cells.join(" | "))?;
        writeln!(
            f,
            "{} points, {} of them reached",
            sums.map(|sum| sum[0]).iter().sum::<usize>(),
            sums.map(|sum| sum[1]).iter().sum::<usize>()
        )
    }
}
